//! Clients that do not take their answer.

mod common;

use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

use common::{ask, setup};
use serde_json::json;

/// More than the system keeps for a socket at both of its ends.
const PIECES: usize = 60_000;

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let mut server = setup(&json!({"thinking": false, "pieces": vec!["a"; PIECES]}).to_string());
    server.config.write_timeout = Duration::from_millis(500);
    let server = server.start();
    let whole = json!({"stream": true, "timings_per_token": true});
    let mut stream = server.open_chat(ask("hi", whole.clone()));
    // Others are served, and one that takes its answer gets all of it.
    let taken = server.chat(ask("hi", whole));
    assert_eq!(taken.text().matches("\"content\":\"a\"").count(), PIECES);
    sleep(Duration::from_secs(2));
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    let text = String::from_utf8_lossy(&rest);
    assert!(!text.contains("[DONE]"), "the whole answer came: {} bytes, {ended:?}", rest.len());
}

#[test]
fn silence_of_the_server_is_not_the_clients() {
    let mut server = setup(r#"{"thinking": false, "pieces": ["a", {"sleep_ms": 900}, "b"]}"#);
    server.config.write_timeout = Duration::from_millis(200);
    let reply = server.start().chat(ask("hi", json!({"stream": true})));
    assert!(reply.text().contains("[DONE]"), "{}", reply.text());
}
