//! What connections come through: a port, a port that speaks TLS, or a socket in the file system.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::http::tls::Tls;
#[cfg(unix)]
use crate::http::unix::UnixDoor;

/// A connection's bytes, whatever carries them.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// See the module.
pub(crate) enum Door {
    Port {
        listener: TcpListener,
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
    },
    #[cfg(unix)]
    Socket(UnixDoor),
}

/// A connection that was accepted.
pub(crate) enum Incoming {
    Plain(Box<dyn Wire>),
    /// It has to shake hands first, which takes as long as the client likes: not for the loop that accepts.
    Tls(TcpStream, TlsAcceptor),
}

impl Door {
    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<Incoming> {
        match self {
            Door::Port { listener, tls, .. } => {
                let (stream, _) = listener.accept().await?;
                // A streamed token is a small packet that must not wait for the next.
                let _ = stream.set_nodelay(true);
                Ok(match tls {
                    Some(tls) => Incoming::Tls(stream, tls.acceptor()),
                    None => Incoming::Plain(Box::new(stream)),
                })
            }
            #[cfg(unix)]
            Door::Socket(socket) => Ok(Incoming::Plain(Box::new(socket.accept().await?))),
        }
    }

    /// The port's address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Door::Port { address, .. } => Some(*address),
            #[cfg(unix)]
            Door::Socket(_) => None,
        }
    }

    /// What a client is pointed at.
    pub(crate) fn url(&self) -> String {
        match self {
            Door::Port { address, tls, .. } => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                match address.ip() {
                    IpAddr::V4(ip) => format!("{scheme}://{ip}:{}", address.port()),
                    IpAddr::V6(ip) => format!("{scheme}://[{ip}]:{}", address.port()),
                }
            }
            #[cfg(unix)]
            Door::Socket(socket) => format!("unix:{}", socket.path().display()),
        }
    }
}

impl Incoming {
    /// The connection's bytes; `None` if the client did not shake hands in time.
    pub(crate) async fn open(self, time: Duration) -> Option<Box<dyn Wire>> {
        match self {
            Incoming::Plain(wire) => Some(wire),
            Incoming::Tls(stream, acceptor) => {
                match tokio::time::timeout(time, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => Some(Box::new(stream)),
                    Ok(Err(error)) => {
                        tracing::debug!("a client did not come to terms about encryption: {error}");
                        None
                    }
                    Err(_) => None,
                }
            }
        }
    }
}

/// A socket that cannot be served on.
#[derive(Debug, thiserror::Error)]
#[error("--socket {}: {problem}", path.display())]
pub struct SocketError {
    pub(crate) path: PathBuf,
    pub(crate) problem: String,
}
