//! Other ways in than a plain port: TLS, and a socket in the file system.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, Reply, Running, Setup, ask, post, setup};
use lily_server::{BindError, ServerConfig, TlsFiles, bind};
use rustls::pki_types::ServerName;
use serde_json::json;
use tempfile::TempDir;

const HELLO: &str = r#"{"thinking": false, "pieces": ["Hel", "lo"]}"#;

/// A certificate for localhost in two files, and the client that trusts it and no other.
fn certificate(folder: &Path, name: &str) -> (TlsFiles, Arc<rustls::ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let files =
        TlsFiles { cert: folder.join(format!("{name}.pem")), key: folder.join(format!("{name}.key")) };
    std::fs::write(&files.cert, made.cert.pem()).expect("written");
    std::fs::write(&files.key, made.signing_key.serialize_pem()).expect("written");
    let mut trusted = rustls::RootCertStore::empty();
    trusted.add(made.cert.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(trusted)
        .with_no_client_auth();
    (files, Arc::new(client))
}

fn with_tls(files: &TlsFiles) -> Setup {
    let mut setup = setup(HELLO);
    setup.config.tls = Some(files.clone());
    setup
}

/// One request over TLS; an error if the two do not come to terms.
fn encrypted(server: &Running, client: &Arc<rustls::ClientConfig>, request: &[u8]) -> std::io::Result<Reply> {
    let name = ServerName::try_from("localhost").expect("a name");
    let session = rustls::ClientConnection::new(client.clone(), name).expect("a session");
    let mut stream = rustls::StreamOwned::new(session, server.connect());
    stream.write_all(request)?;
    Ok(Reply::read(&mut stream))
}

#[test]
fn tls_carries_answers_and_streams() {
    let folder = TempDir::new().expect("a folder");
    let (files, client) = certificate(folder.path(), "a");
    let server = with_tls(&files).start();
    let whole = encrypted(
        &server,
        &client,
        &post("/v1/chat/completions", ask("hi", json!({})).to_string().as_bytes()),
    );
    assert_eq!(whole.expect("a reply").json()["choices"][0]["message"]["content"], "Hello");
    let body = ask("hi", json!({"stream": true})).to_string();
    let stream =
        encrypted(&server, &client, &post("/v1/chat/completions", body.as_bytes())).expect("a reply");
    assert_eq!(common::joined(&stream.events(), "content"), "Hello");
    // the same checks as ever
    let foreign = b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(encrypted(&server, &client, foreign).expect("a reply").status, 403);
}

#[test]
fn who_does_not_speak_tls_is_let_go_and_others_are_served() {
    let folder = TempDir::new().expect("a folder");
    let (files, client) = certificate(folder.path(), "a");
    let mut hasty = with_tls(&files);
    hasty.config.header_timeout = Duration::from_millis(300);
    let server = hasty.start();
    let mut silent = server.connect();
    let mut plain = server.connect();
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(encrypted(&server, &client, ask).expect("a reply").status, 200, "beside both");
    for stream in [&mut silent, &mut plain] {
        let mut said = Vec::new();
        let _ = std::io::Read::read_to_end(stream, &mut said);
        assert!(!said.starts_with(b"HTTP"), "{said:?}");
    }
}

#[test]
fn a_certificate_is_read_again() {
    let folder = TempDir::new().expect("a folder");
    let (files, client) = certificate(folder.path(), "a");
    let server = with_tls(&files).start();
    let ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (newer, newer_client) = certificate(folder.path(), "b");
    assert!(encrypted(&server, &newer_client, ask).is_err(), "not this server's");
    std::fs::copy(&newer.cert, &files.cert).expect("copied");
    server.handle.reread();
    assert_eq!(encrypted(&server, &client, ask).expect("as before: the key is another one's").status, 200);
    std::fs::copy(&newer.key, &files.key).expect("copied");
    server.handle.reread();
    assert_eq!(encrypted(&server, &newer_client, ask).expect("the new one").status, 200);
    assert!(encrypted(&server, &client, ask).is_err());
}

fn refusal(config: ServerConfig) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error: BindError = runtime.block_on(bind(ServerConfig { port: 0, ..config })).expect_err("refused");
    error.to_string()
}

#[test]
fn bad_certificates_are_named() {
    let folder = TempDir::new().expect("a folder");
    let (good, _) = certificate(folder.path(), "a");
    let (other, _) = certificate(folder.path(), "b");
    let nowhere = folder.path().join("nowhere");
    let says = |cert: &Path, key: &Path| {
        let tls = Some(TlsFiles { cert: cert.to_owned(), key: key.to_owned() });
        refusal(ServerConfig { tls, ..ServerConfig::default() })
    };
    for (cert, key, words) in [
        (&nowhere, &good.key, "--tls-cert"),
        (&good.cert, &nowhere, "--tls-key"),
        (&good.key, &good.key, "no certificate in it"),
        (&good.cert, &good.cert, "no private key in it"),
        (&good.cert, &other.key, "does not go with --tls-cert"),
        (&folder.path().to_owned(), &good.key, "not a file"),
    ] {
        let said = says(cert, key);
        assert!(said.contains(words), "{said}");
    }
}

#[cfg(unix)]
mod socket {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn on(path: &Path) -> Setup {
        let mut setup = setup(HELLO);
        setup.config.socket = Some(path.to_owned());
        setup
    }

    fn get(path: &Path, host: &str) -> Reply {
        let mut stream = UnixStream::connect(path).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let request = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        Reply::read(&mut stream)
    }

    #[test]
    fn a_socket_serves_its_user_and_is_gone_afterwards() {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("lily.sock");
        let mut server = on(&path).start();
        assert_eq!(get(&path, "localhost").status, 200);
        assert_eq!(get(&path, "evil.example").status, 403);
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
        let names: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(names.len(), 1, "{names:?}");
        let second = refusal(ServerConfig { socket: Some(path.clone()), ..ServerConfig::default() });
        assert!(second.contains("another program serves there"), "{second}");
        server.handle.drain();
        assert!(server.wait_served(PATIENCE));
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_nothing_else_is() {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("lily.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
        assert!(UnixStream::connect(&path).is_err(), "nobody serves it");
        let server = on(&path).start();
        assert_eq!(get(&path, "localhost").status, 200);
        drop(server);

        let file = folder.path().join("notes");
        std::fs::write(&file, "text").expect("written");
        let said = refusal(ServerConfig { socket: Some(file.clone()), ..ServerConfig::default() });
        assert!(said.contains("something else than a socket"), "{said}");
        assert_eq!(std::fs::read_to_string(&file).expect("still there"), "text");
        let long = folder.path().join("x".repeat(200));
        let said = refusal(ServerConfig { socket: Some(long), ..ServerConfig::default() });
        assert!(said.contains("--socket") && said.contains("short path"), "{said}");
    }

    #[test]
    fn a_port_is_not_taken_beside_a_socket() {
        let folder = TempDir::new().expect("a folder");
        let server = on(&folder.path().join("lily.sock")).start();
        assert_eq!(server.address.port(), 0);
        assert!(TcpStream::connect(server.address).is_err());
    }
}
