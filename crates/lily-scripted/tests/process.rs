//! The binary as a user runs it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn script(name: &str, text: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the script can be written");
    path
}

fn start(name: &str, text: &str, more: &[&str]) -> (Killed, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lily-scripted"))
        .arg("--script")
        .arg(script(name, text))
        .args(["--port", "0"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    (Killed(child), line)
}

fn address(line: &str) -> &str {
    line.trim_end().strip_prefix("listening on http://").expect("the line of the URL")
}

#[test]
fn the_first_line_is_the_url_and_answers_are_possible() {
    let (_server, line) = start("url.jsonl", r#"{"pieces": ["x"]}"#, &[]);
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");
    let mut stream = TcpStream::connect(address(&line)).expect("a connection");
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    assert!(reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with("{\"status\":\"ok\"}"), "{reply}");
}

#[test]
fn bad_scripts_and_flags_are_errors() {
    let run = |path: &str, more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_lily-scripted"))
            .args(["--script", path, "--port", "0"])
            .args(more)
            .output()
            .expect("the binary runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let bad = script("bad.jsonl", "{\"pieces\": []}\n{\"pieces\": [7]}");
    let bad = bad.to_str().expect("a path");
    assert!(run(bad, &[]).contains("script line 2"), "{}", run(bad, &[]));
    assert!(run("/nowhere.jsonl", &[]).contains("/nowhere.jsonl"));
    let good = script("good.jsonl", "{\"pieces\": []}");
    let good = good.to_str().expect("a path");
    assert!(run(good, &["--tokenizer", "/nowhere"]).contains("/nowhere"));
    assert!(run(good, &["--context", "0"]).contains("--context"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let said = run(good, &["--port", &port]);
    assert!(said.contains(&port) || said.contains("cannot be used multiple times"), "{said}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_drains() {
    let pieces = r#"{"thinking": false, "pieces": ["one", {"sleep_ms": 400}, " two"]}"#;
    let (mut server, line) = start("drain.jsonl", pieces, &[]);
    let mut stream = TcpStream::connect(address(&line)).expect("a connection");
    let body = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(150));
    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the reply of a running request");
    assert!(reply.contains("one two"), "{reply}");
    let started = Instant::now();
    while server.0.try_wait().expect("a child").is_none() {
        assert!(started.elapsed() < Duration::from_secs(5), "the server ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(server.0.wait().expect("a child").success());
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_does_not_wait() {
    let (mut server, line) = start("twice.jsonl", r#"{"pieces": ["one", {"sleep_ms": 60000}]}"#, &[]);
    let mut stream = TcpStream::connect(address(&line)).expect("a connection");
    let body = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(150));
    let pid = server.0.id().to_string();
    let started = Instant::now();
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
        std::thread::sleep(Duration::from_millis(150));
    }
    while server.0.try_wait().expect("a child").is_none() {
        assert!(started.elapsed() < Duration::from_secs(5), "the server ends at once");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_keys_again() {
    let keys = script("keys.txt", "first\n");
    let key_file = keys.to_str().expect("a path").to_owned();
    let (server, line) = start("keys.jsonl", r#"{"pieces": ["x"]}"#, &["--api-key-file", &key_file]);
    let status = |key: &str| {
        let mut stream = TcpStream::connect(address(&line)).expect("a connection");
        let request = format!(
            "GET /props HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply[9..12].to_owned()
    };
    assert_eq!((status("first").as_str(), status("second").as_str()), ("200", "401"));
    std::fs::write(&keys, "second\n").expect("written");
    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
    let started = Instant::now();
    while status("second") != "200" {
        assert!(started.elapsed() < Duration::from_secs(5), "the file is read again");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status("first"), "401");
}
