//! What the operator chooses: address and limits.

use std::path::PathBuf;
use std::time::Duration;

use crate::http::tls::TlsFiles;

/// Where to listen and how much to take. [`ServerConfig::default`] and then set what differs.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address or name to bind. Loopback by default.
    pub host: String,
    /// Port to bind; 0 lets the system choose.
    pub port: u16,
    /// A socket in the file system to listen on, in place of host and port; only this user can connect.
    pub socket: Option<PathBuf>,
    /// Speak TLS, with this certificate; read again by [`crate::Handle::reread`].
    pub tls: Option<TlsFiles>,
    /// Names accepted in `Host` besides localhost, loopback addresses and `host` itself.
    pub allowed_hosts: Vec<String>,
    /// Keys of which a request has to bring one, except to `/health`, `/v1/models` and `/`. Empty, and no file: no key is
    /// needed.
    pub api_keys: Vec<String>,
    /// More keys, one a line; read again by [`crate::Handle::reread`].
    pub api_key_file: Option<PathBuf>,
    /// Requests of one key running at one moment; one more is answered 429. `None`: as many as there is room for.
    pub requests_per_key: Option<usize>,
    /// Origins whose web pages may use this server (`https://page.example`); `*` is every origin.
    pub cors_origins: Vec<String>,
    /// Serve on a public address although no key is needed.
    pub allow_public: bool,
    /// Largest request body in bytes. Agents send several megabytes of history.
    pub max_body_bytes: usize,
    /// Bytes of all request bodies held at one moment, so that many large bodies cannot fill the memory together.
    pub max_bodies_bytes: usize,
    /// Largest request head (request line and headers) in bytes; at least 8192.
    pub max_header_bytes: usize,
    /// Most headers of one request.
    pub max_headers: usize,
    /// Connections served at one moment; one more is answered 503.
    pub max_connections: usize,
    /// Time for a request head to arrive, and how long an idle connection is kept.
    pub header_timeout: Duration,
    /// Time for a request body to arrive.
    pub body_timeout: Duration,
    /// A client that takes nothing of its answer for this long is let go, so that it cannot hold its connection, its answer
    /// and a place in the engine.
    pub write_timeout: Duration,
    /// A stream that says nothing for this long gets a comment line, so that nothing between server and client takes
    /// the silence of a long prefill for a dead connection.
    pub keep_alive: Duration,
    /// After the first interrupt, running requests have this long to finish.
    pub drain_grace: Duration,
    /// Requests parsed, rendered and tokenized at one moment. This is CPU work, done outside the async threads.
    pub max_preparing: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            host: "127.0.0.1".into(),
            port: 8080,
            socket: None,
            tls: None,
            allowed_hosts: Vec::new(),
            api_keys: Vec::new(),
            api_key_file: None,
            requests_per_key: None,
            cors_origins: Vec::new(),
            allow_public: false,
            max_body_bytes: 32 << 20,
            max_bodies_bytes: 256 << 20,
            max_header_bytes: 64 << 10,
            max_headers: 100,
            max_connections: 512,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain_grace: Duration::from_secs(30),
            max_preparing: std::thread::available_parallelism().map_or(2, |cores| cores.get().min(4)),
        }
    }
}
