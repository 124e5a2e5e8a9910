//! The server against raw sockets: what is malformed, too large, too slow, foreign or gone.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{PATIENCE, Reply, ask, joined, post, setup};
use lily_scripted::EngineOptions;
use serde_json::{Value, json};

const HELLO: &str = r#"{"match": "slow", "thinking": false, "pieces": ["a", {"sleep_ms": 60000}, "b"]}
{"match": "late", "thinking": false, "pieces": [{"sleep_ms": 300}, "late"]}
{"thinking": false, "pieces": ["Hello", " there"]}"#;

#[test]
fn hosts_are_checked_before_anything_else() {
    let server = setup(HELLO).start();
    let get = |host: &str| {
        server.raw(format!("GET /health HTTP/1.1\r\n{host}Connection: close\r\n\r\n").as_bytes())
    };
    assert_eq!(get("Host: localhost:99\r\n").status, 200);
    assert_eq!(get("Host: [::1]:8080\r\n").status, 200);
    assert_eq!(get("Host: evil.example\r\n").error(), (403, "host_not_allowed".into()));
    assert_eq!(get("Host: localhost.evil.example\r\n").status, 403);
    assert_eq!(get("").error(), (400, "invalid_host".into()));
    assert_eq!(get("Host: localhost\r\nHost: localhost\r\n").error(), (400, "invalid_host".into()));
    let absolute = "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(absolute.as_bytes()).status, 403);
    // Also where nothing is, and on the routes of the caller.
    for path in ["/nowhere", "/debug/requests", "/v1/chat/completions"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert_eq!(server.raw(request.as_bytes()).status, 403, "{path}");
    }
    assert_eq!(server.raw(b"GET /health HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn another_origin_gets_nothing() {
    let server = setup(HELLO).start();
    let preflight = server.raw(
        b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\
          Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(preflight.status, 405);
    assert!(!preflight.head.contains("access-control"), "{}", preflight.head);
    for kind in ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"] {
        let body = ask("hi", json!({})).to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(server.raw(request.as_bytes()).error(), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_eq!(server.engine.records().len(), 0);
}

#[test]
fn heads_have_a_size() {
    let server = setup(HELLO).start();
    let large = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(server.raw(large.as_bytes()).error(), (431, "headers_too_large".into()));
    let many = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(1000));
    assert_eq!(server.raw(many.as_bytes()).error(), (431, "headers_too_large".into()));
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(server.raw(long_path.as_bytes()).error(), (431, "headers_too_large".into()));
    let endless = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        u64::MAX
    );
    let reply = server.raw(endless.as_bytes());
    assert_eq!(reply.error(), (431, "headers_too_large".into()));
    assert!(reply.text().contains("Content-Length"), "{}", reply.text());
    // Longer than any address that can be read, within a head that may be so long.
    let mut roomy = setup(HELLO);
    roomy.config.max_header_bytes = 1 << 20;
    let path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(70_000));
    assert_eq!(roomy.start().raw(path.as_bytes()).error(), (414, "url_too_long".into()));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_have_a_size() {
    let mut small = setup(HELLO);
    small.config.max_body_bytes = 1 << 20;
    let server = small.start();
    let large = vec![b' '; 100 << 20];
    let reply = server.post_text("/v1/chat/completions", &large);
    assert_eq!(reply.error(), (413, "body_too_large".into()));
    // The same without a declared length.
    let mut chunked =
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
        Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            .to_vec();
    for _ in 0..40 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&[b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    assert_eq!(server.raw(&chunked).error(), (413, "body_too_large".into()));
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
}

#[test]
fn all_bodies_together_have_a_size() {
    let mut small = setup(HELLO);
    small.config.max_bodies_bytes = 1 << 20;
    let server = small.start();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
        Content-Length: 2000000\r\n\r\n";
    let mut first = server.connect();
    first.write_all(head.as_bytes()).expect("a head");
    first.write_all(&vec![b' '; 900_000]).expect("most of a body");
    std::thread::sleep(Duration::from_millis(200));
    let reply = server.chat(ask(&"x".repeat(400_000), json!({})));
    assert_eq!(reply.error(), (503, "server_busy".into()));
    assert!(reply.head.contains("retry-after: 1"), "{}", reply.head);
    drop(first);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(server.chat(ask(&"x".repeat(400), json!({}))).status, 200);
}

#[test]
fn slow_heads_and_bodies_end() {
    let mut hasty = setup(HELLO);
    hasty.config.header_timeout = Duration::from_millis(200);
    hasty.config.body_timeout = Duration::from_millis(300);
    let server = hasty.start();
    let mut loris = server.connect();
    let started = Instant::now();
    let mut gone = false;
    for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n".iter().cycle() {
        std::thread::sleep(Duration::from_millis(20));
        gone = loris.write_all(&[*byte]).is_err() || started.elapsed() > PATIENCE;
        if gone {
            break;
        }
        assert_eq!(server.get("/health").status, 200, "others are served");
    }
    assert!(gone && started.elapsed() < PATIENCE, "a head that never ends is cut off");
    let mut slow = server.connect();
    let request = post("/v1/chat/completions", b"{\"messages\": []}");
    slow.write_all(&request[..request.len() - 5]).expect("most of a request");
    assert_eq!(Reply::read(&mut slow).error(), (408, "body_timeout".into()));
    // An idle connection is closed too.
    let mut idle = server.connect();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).expect("closed, not reset");
}

#[test]
fn bodies_come_in_any_framing() {
    let server = setup(HELLO).start();
    let body = ask("hi", json!({})).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let (one, two) = body.split_at(7);
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{one}\r\n{:x};ext=1\r\n{two}\r\n0\r\n\r\n",
        one.len(),
        two.len()
    );
    assert_eq!(server.raw(chunked.as_bytes()).status, 200);
    let expecting =
        format!("{head}Expect: 100-continue\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut stream = server.connect();
    stream.write_all(expecting.as_bytes()).expect("a head");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("an interim answer");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).expect("a body");
    assert_eq!(Reply::read(&mut stream).status, 200);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = setup(HELLO).start();
    let body = ask("late", json!({})).to_string();
    let both = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let text = {
        let mut stream = server.connect();
        stream.write_all(both.as_bytes()).expect("the requests are taken");
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("two replies");
        all
    };
    let (answer, health) = (text.find("\"late\""), text.find("{\"status\":\"ok\"}"));
    assert!(answer.is_some() && answer < health, "{text}");
}

#[test]
fn garbage_ends_its_connection_only() {
    let server = setup(HELLO).start();
    let garbage: [&[u8]; 7] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
    ];
    for bytes in garbage {
        let mut stream = server.connect();
        stream.write_all(bytes).expect("bytes are taken");
        let _ = stream.shutdown(Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        assert!(
            reply.is_empty() || reply.starts_with(b"HTTP/1.1 4"),
            "{:?}",
            String::from_utf8_lossy(&reply)
        );
    }
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
}

#[test]
fn what_is_not_http_is_told_so_in_words() {
    let server = setup(HELLO).start();
    for (bytes, part) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..], "HTTP/1.1"),
        (b"hello?\r\n\r\n", "HTTP/1.1"),
        (b"GET / HTTP/9.9\r\n\r\n", "version"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP2"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n", "header"),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
            "content-length",
        ),
        // Behind a good request of the same connection.
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n?\r\n\r\n", "HTTP/1.1"),
    ] {
        let mut stream = server.connect();
        stream.write_all(bytes).expect("bytes are taken");
        let mut all = String::new();
        stream.read_to_string(&mut all).expect("text, and a connection that is closed and not reset");
        let last = all.rfind("HTTP/1.1 4").unwrap_or_else(|| panic!("no refusal of {bytes:?} in {all:?}"));
        let reply = Reply::read(&mut &all.as_bytes()[last..]);
        assert_eq!(reply.error(), (400, "invalid_http".into()));
        assert!(reply.text().contains(part), "{}", reply.text());
        assert!(reply.head.contains("connection: close"), "{}", reply.head);
        let before =
            if bytes.starts_with(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") { 1 } else { 0 };
        assert_eq!(all.matches("HTTP/1.1 ").count() - reply.text().matches("HTTP/1.1 ").count(), before + 1);
    }
}

#[test]
fn a_half_closed_client_is_gone() {
    let server = setup(HELLO).start();
    let request = post("/v1/chat/completions", ask("hi", json!({})).to_string().as_bytes());
    for cut in [10, 100, request.len() - 1] {
        let mut stream = server.connect();
        stream.write_all(&request[..cut]).expect("part of a request");
        stream.shutdown(Shutdown::Write).expect("half closed");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"), "{:?}", String::from_utf8_lossy(&rest));
    }
    assert_eq!(server.engine.records().len(), 0, "nothing was started");
    let stream = server.open_chat(ask("slow", json!({})));
    server.wait_for("the start", |records| records.len() == 1);
    stream.shutdown(Shutdown::Write).expect("half closed");
    server.wait_cancelled(1);
}

#[test]
fn a_client_that_leaves_stops_its_work() {
    let server = setup(HELLO).start();
    // In the middle of a stream.
    let mut streaming = server.open_chat(ask("slow", json!({"stream": true})));
    let mut some = [0; 64];
    streaming.read_exact(&mut some).expect("the stream has begun");
    drop(streaming);
    server.wait_cancelled(1);
    // While nothing is sent.
    let waiting = server.open_chat(ask("slow", json!({})));
    server.wait_for("the start", |records| records.len() == 2);
    drop(waiting);
    server.wait_cancelled(2);
    // One of several answers is enough to hold the rest.
    let several = server.open_chat(ask("slow", json!({"n": 3, "stream": true})));
    server.wait_for("the start", |records| records.len() == 5);
    drop(several);
    server.wait_cancelled(5);
}

#[test]
fn a_client_that_leaves_the_queue_frees_its_place() {
    let mut narrow = setup(HELLO);
    narrow.engine = EngineOptions { parallel: 1, queue: 1, ..EngineOptions::default() };
    let server = narrow.start();
    let running = server.open_chat(ask("slow", json!({})));
    server.wait_for("the start", |records| records.len() == 1);
    let waiting = server.open_chat(ask("hi", json!({"stream": true})));
    server.wait_for("the queue", |records| records.len() == 2);
    let full = server.chat(ask("hi", json!({"stream": true})));
    assert_eq!(full.error(), (429, "queue_full".into()));
    assert!(full.head.contains("retry-after: "), "{}", full.head);
    drop(waiting);
    server.wait_cancelled(1);
    let waiting = server.open_chat(ask("hi", json!({})));
    server.wait_for("the queue", |records| records.len() == 3);
    drop(running);
    let mut waiting = waiting;
    assert_eq!(Reply::read(&mut waiting).status, 200);
}

#[test]
fn connections_have_a_limit() {
    let mut narrow = setup(HELLO);
    narrow.config.max_connections = 2;
    let server = narrow.start();
    let held: Vec<_> = (0..2).map(|_| server.open_chat(ask("slow", json!({})))).collect();
    server.wait_for("both", |records| records.len() == 2);
    assert_eq!(server.get("/health").error(), (503, "server_busy".into()));
    drop(held);
    server.wait_cancelled(2);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn silence_is_filled_with_comments() {
    let mut chatty = setup(HELLO);
    chatty.config.keep_alive = Duration::from_millis(50);
    let server = chatty.start();
    let reply = server.chat(ask("late", json!({"stream": true})));
    let comments = reply.text().matches(": keep-alive\n\n").count();
    assert!((2..=6).contains(&comments), "{}", reply.text());
    assert_eq!(joined(&reply.events(), "content"), "late");
}

/// The paths of streams, and a body for each that asks this.
fn streams(text: &str) -> [(&'static str, Value); 4] {
    let tool = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let function = json!({"name": "count", "parameters": tool});
    let message = json!([{"role": "user", "content": text}]);
    [
        (
            "/v1/chat/completions",
            json!({"messages": message, "stream": true, "tools": [{"type": "function", "function": function}]}),
        ),
        ("/v1/completions", json!({"prompt": text, "stream": true})),
        (
            "/v1/responses",
            json!({"input": text, "stream": true, "tools": [{"type": "function", "name": "count", "parameters": tool}]}),
        ),
        (
            "/v1/messages",
            json!({"messages": message, "max_tokens": 500, "stream": true, "tools": [{"name": "count", "input_schema": tool}]}),
        ),
    ]
}

/// Comments, or Anthropic's pings.
fn signs_of_life(reply: &Reply) -> usize {
    let text = reply.text();
    text.matches(": keep-alive\n\n").count() + text.matches("event: ping\n").count()
}

#[test]
fn silence_is_filled_while_an_argument_is_held_back() {
    let mut pieces = vec![json!("<tool_call>\n<function=count>\n<parameter=n>\n")];
    for _ in 0..40 {
        pieces.extend([json!("1"), json!({"sleep_ms": 20})]);
    }
    pieces.push(json!("\n</parameter>\n</function>\n</tool_call>"));
    let mut chatty = setup(&json!({"thinking": false, "pieces": pieces}).to_string());
    chatty.config.keep_alive = Duration::from_millis(100);
    let server = chatty.start();
    for (path, body) in streams("hi").into_iter().filter(|(path, _)| *path != "/v1/completions") {
        let reply = server.ask_at(path, body);
        let signs = signs_of_life(&reply);
        // 800 ms of tokens every 20 ms, of which nothing may be said.
        assert!((3..=10).contains(&signs), "{path}: {signs} in {}", reply.text());
        assert!(reply.text().contains(&"1".repeat(40)), "{path}: {}", reply.text());
    }
}

#[test]
fn silence_is_filled_while_a_request_waits_for_its_place() {
    let mut chatty = setup(HELLO);
    chatty.config.keep_alive = Duration::from_millis(50);
    chatty.engine = EngineOptions { parallel: 1, ..EngineOptions::default() };
    let server = chatty.start();
    for (at, (path, body)) in streams("hi").into_iter().enumerate() {
        let first = server.open_chat(ask("slow", json!({})));
        server.wait_for("the start", |records| records.len() == 2 * at + 1);
        let mut waiting = server.connect();
        waiting.write_all(&post(path, body.to_string().as_bytes())).expect("the request is taken");
        // The head comes at once, and something from time to time, although nothing runs.
        let mut seen = Vec::new();
        let began = Instant::now();
        while Reply::split(&seen).is_none_or(|reply| signs_of_life(&reply) < 3) {
            let mut piece = [0; 4096];
            let count = waiting.read(&mut piece).expect("signs of life");
            assert!(count > 0 && began.elapsed() < PATIENCE, "{path}");
            seen.extend_from_slice(&piece[..count]);
        }
        drop(first);
        waiting.read_to_end(&mut seen).expect("the answer");
        let reply = Reply::split(&seen).expect("a whole head");
        assert!(reply.text().contains("Hello"), "{path}: {}", reply.text());
    }
}

#[test]
fn while_the_model_loads() {
    let mut loading = setup(HELLO);
    loading.ready = false;
    let server = loading.start();
    let health = server.get("/health");
    assert_eq!((health.status, health.json()), (503, json!({"status": "loading"})));
    for reply in [server.chat(ask("hi", json!({}))), server.get("/v1/models"), server.get("/models/scripted")]
    {
        assert_eq!(reply.error(), (503, "model_loading".into()));
        assert!(reply.head.contains("retry-after: "), "{}", reply.head);
    }
    assert_eq!(server.get("/").status, 200);
    server.make_ready();
    let health = server.get("/health");
    assert_eq!((health.status, health.json()), (200, json!({"status": "ok"})));
    assert_eq!(server.chat(ask("hi", json!({}))).status, 200);
}

#[test]
fn draining_finishes_what_runs() {
    let mut server = setup(HELLO).start();
    let mut running = server.open_chat(ask("late", json!({"stream": true})));
    let _idle = server.connect();
    server.wait_for("the start", |records| records.len() == 1);
    server.handle.drain();
    let reply = Reply::read(&mut running);
    assert_eq!(joined(&reply.events(), "content"), "late");
    assert!(server.wait_served(Duration::from_secs(8)), "the server ended");
    assert!(std::net::TcpStream::connect(server.address).is_err(), "nothing listens any more");
}

#[test]
fn draining_ends_after_its_grace_and_stopping_at_once() {
    let mut patient = setup(HELLO);
    patient.config.drain_grace = Duration::from_millis(200);
    let mut server = patient.start();
    let _running = server.open_chat(ask("slow", json!({})));
    server.wait_for("the start", |records| records.len() == 1);
    server.handle.drain();
    assert!(server.wait_served(Duration::from_secs(5)), "the grace period ends");
    server.wait_cancelled(1);

    let mut server = setup(HELLO).start();
    let _running = server.open_chat(ask("slow", json!({})));
    server.wait_for("the start", |records| records.len() == 1);
    server.handle.drain();
    server.handle.stop();
    assert!(server.wait_served(Duration::from_secs(2)), "stopping does not wait");
    server.wait_cancelled(1);
}

#[test]
fn a_panic_ends_its_own_request() {
    let mut faulty = setup(HELLO);
    faulty.extra = axum::Router::new().route("/panic", axum::routing::get(panics));
    let server = faulty.start();
    let held = server.open_chat(ask("late", json!({})));
    assert_eq!(server.get("/panic").error(), (500, "internal_error".into()));
    let mut held = held;
    assert_eq!(Reply::read(&mut held).status, 200);
}

async fn panics() -> &'static str {
    panic!("as the test wants")
}

#[test]
fn twenty_streams_half_of_them_cut() {
    let script = r#"{"thinking": false, "pieces": ["one ", {"sleep_ms": 40}, "two ", {"sleep_ms": 40}, "three ", {"sleep_ms": 40}, "four"]}"#;
    let server = setup(script).start();
    let complete = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..20)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    let mut stream = server.open_chat(ask("hi", json!({"stream": true})));
                    if client % 2 == 1 {
                        // Some leave at once, some in the middle.
                        std::thread::sleep(Duration::from_millis(5 * client));
                        return 0;
                    }
                    let events = Reply::read(&mut stream).events();
                    assert_eq!(events.last(), Some(&json!("[DONE]")));
                    assert_eq!(joined(&events, "content"), "one two three four");
                    1
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum::<usize>()
    });
    assert_eq!(complete, 10);
    use lily_protocol::Engine;
    let started = Instant::now();
    while server.engine.load().running + server.engine.load().waiting > 0 {
        assert!(started.elapsed() < PATIENCE, "everything ends: {:?}", server.engine.load());
        std::thread::sleep(Duration::from_millis(5));
    }
}
