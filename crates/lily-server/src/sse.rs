//! A response body of server-sent events: an answer's events through an adapter, and comments where it would be silent.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use crate::answer::{AnswerEvent, Answers, Figures};

/// Events that are ready together go out in one write, up to about this many bytes.
const FRAME_BYTES: usize = 16 << 10;
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// How one protocol words a stream. Each call appends whole events to `out`.
pub(crate) trait Wording: Send + Unpin + 'static {
    /// Before the engine said anything.
    fn opening(&mut self, out: &mut Vec<u8>);
    /// Something about the answer with this number. `false` ends the stream.
    fn event(&mut self, choice: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool;
    /// Whether [`Wording::figures`] is to be called before each event.
    fn wants_figures(&self) -> bool {
        false
    }
    /// What the answer of the next event took so far.
    fn figures(&mut self, _figures: &Figures) {}
    /// After the last answer ended.
    fn closing(&mut self, out: &mut Vec<u8>);
    /// Where the stream would be silent for too long.
    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(KEEP_ALIVE);
    }
}

/// `data: JSON`, and the empty line that ends the event.
pub(crate) fn data(value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // Writing to a Vec cannot fail, and the types written here have string keys only.
    let _ = serde_json::to_writer(&mut *out, value);
    out.extend_from_slice(b"\n\n");
}

/// The same with `event: NAME` before it.
pub(crate) fn named(name: &str, value: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    data(value, out);
}

/// The response around a stream. Dropping its body cancels the answers.
pub(crate) fn response(answers: Answers, wording: impl Wording, keep_alive: Duration) -> Response {
    let body = EventBody {
        answers,
        wording,
        state: State::Opening,
        keep_alive,
        silence: Box::pin(tokio::time::sleep(keep_alive)),
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, axum::http::HeaderValue::from_static("no-cache"));
    // Proxies that buffer responses (nginx) would hold the stream back.
    headers.insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    Ended,
}

struct EventBody<W> {
    answers: Answers,
    wording: W,
    state: State,
    keep_alive: Duration,
    /// Wall clock, whatever the engine does: one slow chunk must not look like a dead connection.
    silence: Pin<Box<Sleep>>,
}

impl<W: Wording> EventBody<W> {
    /// Appends what is ready.
    fn gather(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) {
        if self.state == State::Opening {
            self.wording.opening(out);
            self.state = State::Running;
        }
        while self.state == State::Running && out.len() < FRAME_BYTES {
            match self.answers.poll(context) {
                Poll::Pending => break,
                Poll::Ready(Some((choice, event))) => {
                    if self.wording.wants_figures() {
                        self.wording.figures(&self.answers.figures(choice));
                    }
                    if !self.wording.event(choice, event, out) {
                        self.state = State::Ended;
                    }
                }
                Poll::Ready(None) => {
                    self.wording.closing(out);
                    self.state = State::Ended;
                }
            }
        }
    }
}

impl<W: Wording> http_body::Body for EventBody<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.state == State::Ended {
            return Poll::Ready(None);
        }
        let mut out = Vec::new();
        this.gather(context, &mut out);
        if out.is_empty() && this.state == State::Running {
            if this.silence.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.wording.keep_alive(&mut out);
        }
        if out.is_empty() {
            return Poll::Ready(None);
        }
        this.silence.as_mut().reset(Instant::now() + this.keep_alive);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }

    fn is_end_stream(&self) -> bool {
        self.state == State::Ended
    }
}
