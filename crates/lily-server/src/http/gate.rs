//! What stands before every route: the name that we are called by, the origin of a page, the key; and the line in the log.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::errors::{ApiError, Kind};
use crate::http::cors;
use crate::ids::unique_id;
use crate::messages;
use crate::shared::Shared;

/// The first thing that sees a request.
pub(crate) async fn gate(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let id = request_id(request.headers());
    let mut response = match pass(&shared, request, next, &path).await {
        Ok(response) => response,
        Err(error) if is_messages(&path) => messages::error_response(&error),
        Err(error) => error.into_response(),
    };
    // Under OpenAI's name, and under Anthropic's.
    for name in ["x-request-id", "request-id"] {
        response.headers_mut().insert(name, id.clone());
    }
    // A path is the client's text: quoted and escaped. Bodies, queries and keys never reach the log.
    tracing::info!(
        "{method:?} {path:?} {} after {:.1} ms ({id:?})",
        response.status().as_u16(),
        started.elapsed().as_secs_f64() * 1e3
    );
    response
}

async fn pass(shared: &Shared, request: Request, next: Next, path: &str) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    shared.hosts.check(&parts)?;
    let origin = shared.origins.allowed(&parts.headers);
    if let Some(response) = origin.as_ref().and_then(|origin| cors::preflight(&parts, origin)) {
        return Ok(response);
    }
    let mut response = match enter(shared, &parts.method, &parts.headers, path) {
        Ok(place) => {
            let response = next.run(Request::from_parts(parts, body)).await;
            match place {
                Some(place) => response.map(|body| Body::new(Held { body, _place: place })),
                None => response,
            }
        }
        Err(error) => {
            let unauthorized = error.kind == Kind::Unauthorized;
            let mut response =
                if is_messages(path) { messages::error_response(&error) } else { error.into_response() };
            if unauthorized {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    };
    // A page that may ask may also read what went wrong.
    if let Some(origin) = &origin {
        cors::allow(response.headers_mut(), origin);
    }
    Ok(response)
}

/// Whether the request may be answered, and its place among those of its key.
fn enter(
    shared: &Shared,
    method: &Method,
    headers: &HeaderMap,
    path: &str,
) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
    if is_public(path) {
        return Ok(None);
    }
    let key = shared.keys.check(headers)?;
    if method == Method::POST { key.begin() } else { Ok(None) }
}

/// What says nothing about anyone: whether the server lives, and which model it has.
fn is_public(path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    matches!(path, "/" | "/health" | "/models") || path.starts_with("/models/")
}

fn is_messages(path: &str) -> bool {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    path == "/messages" || path.starts_with("/messages/")
}

/// The client's own name for the request, if it is short and plain; otherwise a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    const LONGEST: usize = 128;
    let plain = |value: &&HeaderValue| {
        (1..=LONGEST).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    match headers.get("x-request-id").filter(plain) {
        Some(own) => own.clone(),
        None => HeaderValue::from_str(&unique_id("req_")).unwrap_or(HeaderValue::from_static("req")),
    }
}

/// A body that keeps its key's place until it ends.
struct Held {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
