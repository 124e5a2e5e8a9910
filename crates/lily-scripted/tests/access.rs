//! Who may use the server: keys, origins, public addresses, time.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::{Reply, Running, ask, post, setup};
use lily_server::{BindError, ServerConfig, bind};
use serde_json::{Value, json};

const SLOW: &str = r#"{"match": "slow", "thinking": false, "pieces": ["a", {"sleep_ms": 60000}, "b"]}
{"thinking": false, "pieces": ["Hello"]}"#;

fn with_keys(keys: &[&str], per_key: Option<usize>) -> Running {
    let mut setup = setup(SLOW);
    setup.config.api_keys = keys.iter().map(|key| key.to_string()).collect();
    setup.config.requests_per_key = per_key;
    setup.start()
}

fn request(method: &str, path: &str, head: &str, body: &Value) -> Vec<u8> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n{head}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[test]
fn a_key_opens_everything_and_nothing_else_does() {
    let server = with_keys(&["sk-one", "sk-two"], None);
    let chat = |head: &str| server.raw(&request("POST", "/v1/chat/completions", head, &ask("hi", json!({}))));
    for good in [
        "Authorization: Bearer sk-one\r\n",
        "authorization: bearer   sk-two \r\n",
        "X-Api-Key: sk-one\r\n",
        "x-api-key: sk-two\r\nAuthorization: Basic abc\r\n",
    ] {
        assert_eq!(chat(good).status, 200, "{good}");
    }
    for bad in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer sk-on\r\n",
        "Authorization: Bearer sk-one1\r\n",
        "Authorization: Bearer SK-ONE\r\n",
        "Authorization: sk-one\r\n",
        "Authorization: Basic sk-one\r\n",
        "X-Api-Key: \r\n",
        "Cookie: key=sk-one\r\n",
    ] {
        let reply = chat(bad);
        assert_eq!(reply.error(), (401, "invalid_api_key".into()), "{bad}");
        assert_eq!(reply.json()["error"]["type"], "authentication_error");
        assert!(reply.head.contains("www-authenticate: bearer"), "{}", reply.head);
        assert!(!reply.text().contains("sk-"), "{}", reply.text());
    }
    assert_eq!(server.get("/v1/chat/completions?api_key=sk-one").status, 401, "not in a query");
    assert_eq!(server.engine.records().len(), 4);
    for public in ["/health", "/v1/health", "/v1/models", "/models", "/v1/models/scripted", "/"] {
        assert_eq!(server.get(public).status, 200, "{public}");
    }
    for closed in ["/metrics", "/props", "/slots", "/nowhere", "/debug/requests", "/healthx", "/v1/v1/models"]
    {
        assert_eq!(server.get(closed).status, 401, "{closed}");
    }
    let messages = server.raw(&request("POST", "/v1/messages", "", &json!({})));
    assert_eq!((messages.status, &messages.json()["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(messages.json()["type"], "error", "in Anthropic's shape");
}

#[test]
fn a_key_has_its_own_places() {
    let server = with_keys(&["one", "two"], Some(1));
    let chat = |key: &str, text: &str, stream: bool| {
        let body = ask(text, json!({"stream": stream}));
        request("POST", "/v1/chat/completions", &format!("X-Api-Key: {key}\r\n"), &body)
    };
    let mut slow = server.connect();
    slow.write_all(&chat("one", "slow", true)).expect("the request is taken");
    let mut seen = [0; 16];
    slow.read_exact(&mut seen).expect("the stream begins");
    let refused = server.raw(&chat("one", "hi", false));
    assert_eq!(refused.error(), (429, "key_busy".into()));
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    assert_eq!(server.raw(&chat("two", "hi", false)).status, 200, "another key is not held up");
    drop(slow);
    server.wait_cancelled(1);
    let mut again = server.raw(&chat("one", "hi", false));
    // The place comes back when the connection's task has noticed.
    for _ in 0..100 {
        if again.status == 200 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        again = server.raw(&chat("one", "hi", false));
    }
    assert_eq!(again.status, 200);
}

#[test]
fn a_key_file_is_read_again() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys.txt");
    std::fs::write(&path, "# of mine\n\n first \nsecond\n").expect("a file");
    let mut keyed = setup(SLOW);
    keyed.config.api_key_file = Some(path.clone());
    let server = keyed.start();
    let status = |key: &str| {
        server.raw(&request("GET", "/props", &format!("X-Api-Key: {key}\r\n"), &Value::Null)).status
    };
    assert_eq!(
        (status("first"), status("second"), status("# of mine"), status("third")),
        (200, 200, 401, 401)
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    std::fs::write(&path, "third\nsecond\n").expect("a file");
    assert_eq!(status("third"), 401, "not before it is told");
    server.handle.reread();
    assert_eq!((status("first"), status("second"), status("third")), (401, 200, 200));
    std::fs::write(&path, "# none\n").expect("a file");
    server.handle.reread();
    assert_eq!(status("third"), 200, "a file without keys changes nothing");
    std::fs::write(&path, "\u{feff}one\r\ntwo\r\n").expect("a file");
    server.handle.reread();
    assert_eq!((status("one"), status("two"), status("third")), (200, 200, 401), "as Windows writes it");
    // A line that no header can bring: all stays as it was, and the line is named and not shown.
    std::fs::write(&path, "first\n# of mine\n\nse cret\n").expect("a file");
    server.handle.reread();
    assert_eq!((status("first"), status("one")), (401, 200));
    let config = ServerConfig { port: 0, api_key_file: Some(path.clone()), ..ServerConfig::default() };
    let error = runtime.block_on(bind(config)).expect_err("a key with a blank").to_string();
    assert!(error.contains("line 4") && !error.contains("cret"), "{error}");
    std::fs::write(&path, "# none\n").expect("a file");
    for file in [path, "no/such/file".into(), env!("CARGO_TARGET_TMPDIR").into()] {
        let config = ServerConfig { port: 0, api_key_file: Some(file.clone()), ..ServerConfig::default() };
        let error = runtime.block_on(bind(config)).expect_err("no keys").to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}

#[test]
fn flags_that_could_not_do_what_they_are_for_are_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = || ServerConfig { port: 0, ..ServerConfig::default() };
    let list = |values: &[&str]| values.iter().map(|value| value.to_string()).collect::<Vec<_>>();
    for (flag, part, config) in [
        ("--api-key", "key 1 of 1 is empty", ServerConfig { api_keys: list(&[""]), ..config() }),
        ("--api-key", "key 2 of 3 is empty", ServerConfig { api_keys: list(&["a", "", "b"]), ..config() }),
        ("--api-key", "key 2 of 2 has a blank", ServerConfig { api_keys: list(&["a", " cret"]), ..config() }),
        ("--api-key", "key 1 of 1", ServerConfig { api_keys: list(&["cr\u{e8}t"]), ..config() }),
        ("--requests-per-key", "--api-key", ServerConfig { requests_per_key: Some(2), ..config() }),
        ("--cors-origins", "\"foo\" is no origin", ServerConfig { cors_origins: list(&["foo"]), ..config() }),
        (
            "--cors-origins",
            "\"\" is no origin",
            ServerConfig { cors_origins: list(&["https://page.example", ""]), ..config() },
        ),
        ("--allowed-hosts", "\"*\" is no host", ServerConfig { allowed_hosts: list(&["*"]), ..config() }),
        (
            "--allowed-hosts",
            "\"\" is no host",
            ServerConfig { allowed_hosts: list(&["box", ""]), ..config() },
        ),
    ] {
        let error = runtime.block_on(bind(config)).expect_err(part).to_string();
        assert!(error.starts_with(&format!("{flag}: ")) && error.contains(part), "{error}");
        assert!(!error.contains("cret") && !error.contains("\u{e8}"), "a key is shown: {error}");
    }
}

#[test]
fn a_public_address_needs_a_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let public = || ServerConfig { host: "0.0.0.0".into(), port: 0, ..ServerConfig::default() };
    let refused = runtime.block_on(bind(public())).expect_err("refused");
    assert!(matches!(refused, BindError::Public { .. }));
    for part in ["0.0.0.0", "--api-key", "--allow-public"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    for config in [
        ServerConfig { api_keys: vec!["k".into()], ..public() },
        ServerConfig { allow_public: true, ..public() },
        ServerConfig { host: "127.0.0.1".into(), ..public() },
        ServerConfig { host: "localhost".into(), ..public() },
    ] {
        assert!(runtime.block_on(bind(config)).is_ok());
    }
}

#[test]
fn only_named_origins_get_cors_headers() {
    let mut open = setup(SLOW);
    open.config.cors_origins = vec!["https://page.example/".into(), "http://localhost:3000".into()];
    open.config.api_keys = vec!["k".into()];
    let server = open.start();
    let preflight = |origin: &str| {
        let head = format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, content-type\r\n\
             Access-Control-Request-Private-Network: true\r\n"
        );
        server.raw(&request("OPTIONS", "/v1/chat/completions", &head, &Value::Null))
    };
    for origin in ["https://page.example", "http://localhost:3000"] {
        let reply = preflight(origin);
        assert_eq!(reply.status, 204, "without a key: browsers send none here");
        for part in [
            format!("access-control-allow-origin: {origin}"),
            "access-control-allow-headers: authorization, content-type".into(),
            "access-control-allow-private-network: true".into(),
            "access-control-allow-methods: get, post".into(),
            "vary: origin".into(),
        ] {
            assert!(reply.head.contains(&part), "{part} is not in {}", reply.head);
        }
    }
    let chat = |origin: &str, key: &str| -> Reply {
        let head = format!("Origin: {origin}\r\nX-Api-Key: {key}\r\n");
        server.raw(&request("POST", "/v1/chat/completions", &head, &ask("hi", json!({}))))
    };
    let (good, unauthorized) = (chat("https://page.example", "k"), chat("https://page.example", "x"));
    assert_eq!((good.status, unauthorized.status), (200, 401));
    for reply in [good, unauthorized] {
        assert!(reply.head.contains("access-control-allow-origin: https://page.example"), "{}", reply.head);
    }
    for foreign in [
        "https://evil.example",
        "null",
        "https://page.example.evil",
        "http://page.example",
        "https://page.example:1",
    ] {
        for reply in [preflight(foreign), chat(foreign, "k")] {
            assert!(!reply.head.contains("access-control"), "{foreign}: {}", reply.head);
        }
    }
    // A named origin does not make a foreign Host good.
    let foreign = b"GET /health HTTP/1.1\r\nHost: evil.example\r\nOrigin: https://page.example\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(foreign).status, 403);
}

#[test]
fn an_answer_has_its_time() {
    let mut timed = setup(SLOW);
    timed.service = |service| service.request_timeout = Some(Duration::from_millis(200));
    let server = timed.start();
    assert_eq!(server.chat(ask("slow", json!({}))).error(), (504, "request_timeout".into()));
    let events = server.chat(ask("slow", json!({"stream": true}))).events();
    assert_eq!(events.last().expect("events")["error"]["code"], "request_timeout");
    let body = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "slow"}]}).to_string();
    let reply = server.raw(&post("/v1/messages", body.as_bytes()));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (504, &json!("timeout_error")));
    server.wait_cancelled(3);
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
}
