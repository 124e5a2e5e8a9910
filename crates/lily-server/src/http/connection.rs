//! One connection from its first byte to its last, within the limits of head size, head time and idleness.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_io_timeout::TimeoutWriter;

use crate::errors::Kind;
use crate::http::door::{Incoming, Wire};
use crate::http::refusal::{self, Watched};
use crate::shared::{Phase, Shared};

/// hyper refuses to work with a smaller buffer.
const SMALLEST_HEAD: usize = 8192;
/// How long the end of a refused request is read before the socket is closed.
const LINGER: Duration = Duration::from_secs(5);
/// The same while draining, when nothing more is expected of anyone.
const SHORT_LINGER: Duration = Duration::from_millis(50);
/// How long a connection over the limit may take to go away.
const REFUSAL: Duration = Duration::from_secs(1);

/// Serves requests until the client leaves, a limit is passed or the server drains.
///
/// A client that closes its sending side counts as gone, since nothing tells it apart from one that closed everything;
/// the request in progress is dropped, and with it its work.
pub(crate) async fn serve(incoming: Incoming, shared: Arc<Shared>, router: Router) {
    let config = &shared.config;
    let opened = tokio::select! {
        opened = incoming.open(config.header_timeout) => opened,
        () = shared.reached(Phase::Draining) => None,
    };
    let Some(stream) = opened else { return };
    let mut timed = TimeoutWriter::new(stream);
    timed.set_timeout(Some(config.write_timeout));
    let stream: Box<dyn Wire> = Box::new(Box::pin(timed));
    let stream = Watched::new(stream);
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(config.max_headers)
        .max_buf_size(config.max_header_bytes.max(SMALLEST_HEAD))
        .half_close(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut stopped = pin!(shared.reached(Phase::Stopped));
    let mut draining = pin!(shared.reached(Phase::Draining));
    let mut told = false;
    let finished = loop {
        tokio::select! {
            biased;
            () = &mut stopped => return,
            () = &mut draining, if !told => {
                told = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
            result = poll_fn(|context| connection.poll_without_shutdown(context)) => break result,
        }
    };
    let mut watched = connection.into_parts().io.into_inner();
    if let Err(error) = &finished {
        tracing::debug!("a connection ended early: {error}");
        if let Some(refusal) = watched.refusal(error) {
            refusal::write(&mut watched.stream, &refusal).await;
        }
    }
    linger(watched.stream, if told { SHORT_LINGER } else { LINGER }).await;
}

/// Says that there is no place for this connection; not to one that would have to shake hands first, which costs more than a place.
pub(crate) async fn refuse(incoming: Incoming) {
    let Incoming::Plain(mut stream) = incoming else { return };
    let error = Kind::Busy.error("too many connections at this moment; try again").retry_after(1);
    let whole = async {
        refusal::write(&mut stream, &error).await;
        linger(stream, REFUSAL).await;
    };
    let _ = tokio::time::timeout(REFUSAL, whole).await;
}

/// Closes a socket so that the peer can read the last answer: a socket closed with bytes unread is reset, and a reset
/// takes the answer along (a refused body would look like a broken connection).
async fn linger(mut stream: Box<dyn Wire>, time: Duration) {
    let mut scratch = vec![0; 16 << 10];
    let mut rest = pin!(async {
        let _ = stream.shutdown().await;
        while stream.read(&mut scratch).await.is_ok_and(|count| count > 0) {}
    });
    let _ = tokio::time::timeout(time, &mut rest).await;
}
