//! A scripted server in this process, and a client that is nothing but a socket.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use lily_scripted::{EngineOptions, Record, Script, ScriptedEngine, State, builtin_text, router};
use lily_server::{Handle, ServerConfig, Service, bind};
use serde_json::{Value, json};

/// Nothing here takes longer; a test that hangs fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How a test's server differs from the usual one.
pub(crate) struct Setup {
    pub(crate) script: String,
    pub(crate) config: ServerConfig,
    pub(crate) engine: EngineOptions,
    pub(crate) service: fn(&mut Service),
    pub(crate) extra: Router,
    pub(crate) ready: bool,
}

pub(crate) fn setup(script: &str) -> Setup {
    Setup {
        script: script.into(),
        config: ServerConfig { port: 0, ..ServerConfig::default() },
        engine: EngineOptions::default(),
        service: |_| {},
        extra: Router::new(),
        ready: true,
    }
}

/// A running server; dropping it stops it.
pub(crate) struct Running {
    /// Port 0 where there is none.
    pub(crate) address: SocketAddr,
    pub(crate) engine: ScriptedEngine,
    pub(crate) handle: Handle,
    service: Service,
    serving: Option<tokio::task::JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
}

impl Setup {
    pub(crate) fn start(self) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (server, engine, service) = runtime.block_on(async {
            let text = Arc::new(builtin_text().expect("the built-in tokenizer"));
            let script = Script::parse(&self.script).expect("a script");
            let engine = ScriptedEngine::new(script, text.clone(), self.engine);
            let mut service = Service::new(Arc::new(engine.clone()), text, "scripted");
            (self.service)(&mut service);
            (bind(self.config).await.expect("a free port"), engine, service)
        });
        let (address, handle) = (server.address().unwrap_or(([127, 0, 0, 1], 0).into()), server.handle());
        if self.ready {
            handle.ready(service.clone());
        }
        let serving = Some(runtime.spawn(server.serve(self.extra.merge(router(engine.clone())))));
        Running { address, engine, handle, service, serving, runtime }
    }
}

impl Running {
    pub(crate) fn make_ready(&self) {
        self.handle.ready(self.service.clone());
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends bytes as they are and reads one reply.
    pub(crate) fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request).expect("the request is taken");
        Reply::read(&mut stream)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    pub(crate) fn post_text(&self, path: &str, body: &[u8]) -> Reply {
        self.raw(&post(path, body))
    }

    pub(crate) fn chat(&self, body: Value) -> Reply {
        self.post_text("/v1/chat/completions", body.to_string().as_bytes())
    }

    pub(crate) fn ask_at(&self, path: &str, body: Value) -> Reply {
        self.post_text(path, body.to_string().as_bytes())
    }

    /// The prompt of the request that reached the engine last.
    pub(crate) fn last_prompt(&self) -> String {
        self.engine.records().pop().expect("a record").prompt
    }

    /// Opens a chat completion and leaves its reply unread.
    pub(crate) fn open_chat(&self, body: Value) -> TcpStream {
        let mut stream = self.connect();
        stream
            .write_all(&post("/v1/chat/completions", body.to_string().as_bytes()))
            .expect("the request is taken");
        stream
    }

    /// Waits until the records satisfy this.
    pub(crate) fn wait_for(&self, what: &str, done: impl Fn(&[Record]) -> bool) -> Vec<Record> {
        let started = Instant::now();
        loop {
            let records = self.engine.records();
            if done(&records) {
                return records;
            }
            assert!(started.elapsed() < PATIENCE, "{what} did not happen: {records:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_cancelled(&self, count: usize) {
        self.wait_for("cancelling", |records| {
            records.iter().filter(|record| record.state == State::Cancelled).count() == count
        });
    }

    /// Waits for `serve` to return; false if it does not in time.
    pub(crate) fn wait_served(&mut self, time: Duration) -> bool {
        let serving = self.serving.take().expect("still serving");
        self.runtime.block_on(async { tokio::time::timeout(time, serving).await.is_ok() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:1234\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// `{"messages": [one of the user], ...more}`.
pub(crate) fn ask(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}

/// One HTTP reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn read(stream: &mut impl Read) -> Reply {
        let mut all = Vec::new();
        let result = stream.read_to_end(&mut all);
        assert!(!all.is_empty(), "no reply ({result:?})");
        Reply::split(&all).expect("a whole head")
    }

    /// What came so far; `None` if the head is not whole.
    pub(crate) fn split(all: &[u8]) -> Option<Reply> {
        let split = all.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..split]).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let mut body = all[split + 4..].to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunk(&body);
        }
        Some(Reply { status, head, body })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("a body in UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Status and `error.code`.
    pub(crate) fn error(&self) -> (u16, String) {
        let body = self.json();
        let error = body["error"].as_object().unwrap_or_else(|| panic!("no error in {body}"));
        let names: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(names, ["message", "type", "param", "code"]);
        (self.status, error["code"].as_str().unwrap_or_default().to_string())
    }

    /// The `data:` events of a stream, parsed; `[DONE]` as a string.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        self.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(parse_event).collect()
    }
}

impl Reply {
    /// The events of a stream whose events have names: each name is that of the data's `type`.
    pub(crate) fn named_events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let event = |text: &str| {
            let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
            let data = parse_event(data);
            assert_eq!(data["type"], name);
            Some(data)
        };
        let text = self.text();
        let events: Vec<Value> =
            text.split("\n\n").filter(|text| !text.is_empty()).filter_map(event).collect();
        assert_eq!(events.len(), text.matches("data: ").count(), "{text}");
        events
    }
}

fn parse_event(data: &str) -> Value {
    if data == "[DONE]" { json!("[DONE]") } else { serde_json::from_str(data).expect("an event of JSON") }
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Some(line) = rest.windows(2).position(|bytes| bytes == b"\r\n") else { return body };
        let length =
            std::str::from_utf8(&rest[..line]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let length = length.expect("a chunk length");
        if length == 0 || rest.len() < line + 2 + length {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + length]);
        rest = &rest[line + 2 + length + 2..];
    }
}

/// All text of one channel of a stream.
pub(crate) fn joined(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
}
