//! From a bound address to a drained server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::app;
use crate::config::ServerConfig;
use crate::http::connection;
use crate::http::cors::Origins;
use crate::http::door::{Door, Incoming, SocketError};
use crate::http::host::HostRule;
use crate::http::keys::{KeyFileError, Keys};
use crate::http::tls::{Tls, TlsError};
use crate::service::Service;
use crate::shared::{Phase, Shared};

/// Connections over the limit that are told so; those over this limit too are closed without a word.
const MOST_REFUSALS: usize = 64;
/// After an accept failed for lack of file descriptors or memory, which some connection's end cures.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// An address that cannot be served on, or not like this.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system does not give the address.
    #[error(
        "cannot listen on {host} port {port}: {source}; choose another --host or --port (--port 0 takes a free one)"
    )]
    Listen {
        /// As the operator wrote it.
        host: String,
        /// As the operator wrote it.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Others reach the address, and no key is needed.
    #[error(
        "--host {host} can be reached from other machines, and whoever reaches it may use this server: set --api-key or \
         --api-key-file, or serve everyone with --allow-public"
    )]
    Public {
        /// As the operator wrote it.
        host: String,
    },
    /// A value with which a flag could not do what it is there for.
    #[error("{flag}: {problem}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What was found and what is wanted.
        problem: String,
    },
    /// The keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The path of the socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A bound server: connections are queued by the system from here on, and answered once [`Server::serve`] runs.
pub struct Server {
    door: Door,
    shared: Arc<Shared>,
}

/// Steers a server while it runs. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&*self.0.phase.borrow()).finish()
    }
}

/// Binds the configured address or socket. Needs a Tokio runtime with I/O and time enabled.
pub async fn bind(config: ServerConfig) -> Result<Server, BindError> {
    let keys = Keys::new(&config)?;
    let origins = Origins::new(&config.cors_origins)?;
    let tls = config.tls.as_ref().map(Tls::new).transpose()?.map(Arc::new);
    let door = match &config.socket {
        Some(path) => socket(path)?,
        None => port(&config, tls.clone()).await?,
    };
    let (host, ip) = match door.address() {
        Some(address) => (config.host.as_str(), address.ip()),
        // Who reaches a socket is for the file system to say.
        None => ("localhost", IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    if !ip.is_loopback() && keys.is_open() {
        if !config.allow_public {
            return Err(BindError::Public { host: config.host });
        }
        tracing::warn!("everyone who reaches {} may use this server: no API key is set", door.url());
    }
    let hosts = HostRule::new(host, ip, &config.allowed_hosts)?;
    Ok(Server { door, shared: Arc::new(Shared::new(config, hosts, keys, origins, tls)) })
}

async fn port(config: &ServerConfig, tls: Option<Arc<Tls>>) -> Result<Door, BindError> {
    let bare = config.host.trim_start_matches('[').trim_end_matches(']');
    let bound = async {
        let listener = TcpListener::bind((bare, config.port)).await?;
        let address = listener.local_addr()?;
        Ok(Door::Port { listener, address, tls })
    };
    bound.await.map_err(|source| BindError::Listen { host: config.host.clone(), port: config.port, source })
}

#[cfg(unix)]
fn socket(path: &std::path::Path) -> Result<Door, BindError> {
    Ok(Door::Socket(crate::http::unix::UnixDoor::bind(path)?))
}

#[cfg(not(unix))]
fn socket(path: &std::path::Path) -> Result<Door, BindError> {
    let problem = "this system has no sockets in the file system; serve on --host and --port".to_owned();
    Err(SocketError { path: path.to_owned(), problem }.into())
}

impl Server {
    /// Where it listens, as `http://127.0.0.1:PORT`, `https://...` or `unix:PATH`.
    pub fn url(&self) -> String {
        self.door.url()
    }

    /// The port that it listens on, unless it is a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        self.door.address()
    }

    /// A handle for the model's loader and the signal's receiver.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Serves until [`Handle::drain`] and the end of running requests, or [`Handle::stop`]. `extra` adds routes of the
    /// caller, under the same checks.
    pub async fn serve(self, extra: Router) {
        let Server { door, shared } = self;
        let router = app::router(shared.clone(), extra);
        let places = Arc::new(Semaphore::new(shared.config.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        let refusals = Arc::new(Semaphore::new(MOST_REFUSALS));
        let mut draining = pin!(shared.reached(Phase::Draining));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = &mut draining => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = door.accept() => match accepted {
                    Ok(incoming) => admit(incoming, &shared, &router, &places, &refusals, &mut connections),
                    Err(error) => {
                        tracing::warn!("a connection could not be accepted: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(door);
        drain(&shared, connections).await;
    }
}

/// Starts a connection's task, if there is a place for it.
fn admit(
    incoming: Incoming,
    shared: &Arc<Shared>,
    router: &Router,
    places: &Arc<Semaphore>,
    refusals: &Arc<Semaphore>,
    connections: &mut JoinSet<()>,
) {
    if let Ok(place) = places.clone().try_acquire_owned() {
        let task = connection::serve(incoming, shared.clone(), router.clone());
        connections.spawn(async move {
            let _place = place;
            task.await;
        });
    } else if let Ok(place) = refusals.clone().try_acquire_owned() {
        connections.spawn(async move {
            let _place = place;
            connection::refuse(incoming).await;
        });
    }
}

/// Waits for running requests, up to the grace period or until someone says stop. Dropping the set ends what is left.
async fn drain(shared: &Shared, mut connections: JoinSet<()>) {
    let all_ended = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all_ended => {}
        () = shared.reached(Phase::Stopped) => {}
        () = tokio::time::sleep(shared.config.drain_grace) => {
            tracing::warn!("some requests did not end within the grace period and were cut off");
        }
    }
    shared.advance(Phase::Stopped);
}

impl Handle {
    /// Answers are possible from here on; `/health` says so. May be called again to replace the service.
    pub fn ready(&self, service: Service) {
        self.0.set_service(Arc::new(service));
    }

    /// Reads the key file and the certificate again, if there are any. What cannot be used stays as it is.
    pub fn reread(&self) {
        if self.0.keys.has_file() {
            match self.0.keys.reread() {
                Ok(count) => tracing::info!("the API keys were read again: there are {count}"),
                Err(error) => tracing::error!("the API keys stay as they are: {error}"),
            }
        }
        if let Some(tls) = &self.0.tls {
            match tls.reread() {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(error) => tracing::error!("the certificate stays as it is: {error}"),
            }
        }
    }

    /// Takes no new connections and lets running requests finish.
    pub fn drain(&self) {
        self.0.advance(Phase::Draining);
    }

    /// Ends everything at once.
    pub fn stop(&self) {
        self.0.advance(Phase::Stopped);
    }

    /// Drains at the first interrupt (Ctrl-C, or a termination signal), stops at the second; reads key file and certificate
    /// again at a hangup signal, if there are any. Never returns by itself: run it beside [`Server::serve`].
    pub async fn obey_signals(&self) {
        #[cfg(unix)]
        if self.rereads_at_hangup() {
            let handle = self.clone();
            tokio::spawn(async move { at_hangups(|| handle.reread()).await });
        }
        if let Err(error) = self.drain_then_stop().await {
            tracing::warn!("interrupts cannot be watched: {error}");
        }
        std::future::pending().await
    }

    /// Whether there is something that a hangup signal has read again.
    pub fn rereads_at_hangup(&self) -> bool {
        self.0.keys.has_file() || self.0.tls.is_some()
    }

    /// Drains at a hangup signal, for a server to which it means nothing else: its terminal was closed.
    #[cfg(unix)]
    pub async fn drain_at_hangup(&self) {
        at_hangups(|| self.drain()).await;
    }

    async fn drain_then_stop(&self) -> io::Result<()> {
        let mut signals = Signals::new()?;
        signals.next().await?;
        tracing::info!(
            "draining: running requests finish, new ones are refused; interrupt again to stop at once"
        );
        self.drain();
        signals.next().await?;
        self.stop();
        Ok(())
    }
}

/// Calls this at every hangup signal. Returns only where those cannot be watched, which it logs.
#[cfg(unix)]
pub async fn at_hangups(mut act: impl FnMut()) {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => {
            while hangup.recv().await.is_some() {
                act();
            }
        }
        Err(error) => tracing::warn!("hangup signals cannot be watched: {error}"),
    }
}

/// Both ways to ask a program to end, watched from before the first one arrives.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> io::Result<()> {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        Ok(())
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals)
    }

    async fn next(&mut self) -> io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}
