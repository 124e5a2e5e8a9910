//! Answers to what never becomes a request: a connection over the limit, a head that is not HTTP/1.1 or too large.
//!
//! hyper answers a head that it cannot read by itself, with a status and no body, and a client's user would see nothing of what was
//! wrong. [`Watched`] keeps that answer back, so that one with a body can be sent in its place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::errors::{ApiError, Kind};

/// A connection's bytes, without hyper's own refusals.
pub(crate) struct Watched<S> {
    pub(crate) stream: S,
    /// The status of the refusal that was kept back, after which hyper writes nothing more.
    refused: Option<StatusCode>,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S) -> Self {
        Watched { stream, refused: None }
    }

    /// What is to be said in place of what hyper said, or would have said if it knew HTTP/2.
    pub(crate) fn refusal(&self, error: &hyper::Error) -> Option<ApiError> {
        let kind = match self.refused {
            Some(StatusCode::URI_TOO_LONG) => Kind::AddressTooLong,
            Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) => Kind::HeadTooLarge,
            Some(_) => Kind::NotHttp,
            None if error.is_parse_version_h2() => Kind::NotHttp,
            None => return None,
        };
        Some(match kind {
            Kind::AddressTooLong => kind.error("the address is too long: send what is long in the body"),
            Kind::HeadTooLarge => kind.error(
                "the request's headers are too many or too long, or its Content-Length is more than any body has",
            ),
            _ => kind.error(format!("this is no request of HTTP/1.1, which is spoken here: {error}")),
        })
    }
}

/// The status of a response that hyper made of a head that it could not read. No response of a route looks like this: all
/// refusals have a body, and no body has bare line ends in it.
fn own_refusal(bytes: &[u8]) -> Option<StatusCode> {
    let head = bytes.strip_suffix(b"\r\n\r\n")?.strip_prefix(b"HTTP/1.")?;
    let status = StatusCode::from_bytes(head.get(2..5)?).ok().filter(StatusCode::is_client_error)?;
    let mut lines = head.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| line == b"content-length: 0").then_some(status)
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(status) = own_refusal(bytes) {
            self.refused = Some(status);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match pieces {
            [one] => self.poll_write(context, one),
            _ => Pin::new(&mut self.stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

/// Writes an error as the last response of a connection.
pub(crate) async fn write(stream: &mut (impl AsyncWrite + Unpin), error: &ApiError) {
    let body = error.body().to_string();
    let status = StatusCode::from_u16(error.kind.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let retry =
        error.retry_after_seconds.map_or(String::new(), |seconds| format!("retry-after: {seconds}\r\n"));
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{retry}connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(response.as_bytes()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hypers_own_refusals_are_kept_back() {
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n";
        assert_eq!(own_refusal(own.as_bytes()), Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        for other in [
            "",
            "HTTP/1.",
            "HTTP/1.1 400\r\n\r\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 09\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n{}",
            "data: {}\n\n\r\nHTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            "0\r\n\r\n",
        ] {
            assert_eq!(own_refusal(other.as_bytes()), None, "{other}");
        }
    }
}
