//! The routes, and what stands before all of them.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::errors::Kind;
use crate::shared::Shared;
use crate::{chat, models};

/// Everything that is served. `extra`: routes of the caller, under the same checks.
pub(crate) fn router(shared: Arc<Shared>, extra: Router) -> Router {
    let api = Router::new()
        .route("/chat/completions", post(chat::complete))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::one));
    Router::new()
        .nest("/v1", api.clone())
        .merge(api)
        .route("/health", get(health))
        .route("/", get(about))
        .with_state(shared.clone())
        .merge(extra)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(shared, gate))
}

/// The first thing that sees a request: whose name it calls us by. Then one line in the log.
async fn gate(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let (parts, body) = request.into_parts();
    let response = match shared.hosts.check(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => error.into_response(),
    };
    // A path is the client's text: quoted and escaped. Bodies and queries never reach the log.
    tracing::info!(
        "{method:?} {path:?} {} after {:.1} ms",
        response.status().as_u16(),
        started.elapsed().as_secs_f64() * 1e3
    );
    response
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    match shared.service() {
        Ok(_) => Json(json!({"status": "ok"})).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "loading"}))).into_response(),
    }
}

async fn about() -> &'static str {
    concat!(
        "Lily ",
        env!("CARGO_PKG_VERSION"),
        ", a local model server with an OpenAI-compatible API. Point a client's base URL at this address followed by \
         /v1; the model is listed at /v1/models.\n"
    )
}

async fn not_found(request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    let shown: String = path.chars().take(200).collect();
    Kind::NotFound
        .error(format!(
            "there is no {method} {shown:?} here; there are POST /v1/chat/completions, GET /v1/models and GET /health"
        ))
        .into_response()
}

async fn method_not_allowed(request: Request) -> Response {
    let (method, path) = (request.method().as_str(), request.uri().path());
    Kind::MethodNotAllowed.error(format!("{path:?} does not take {method}")).into_response()
}

/// A panic ends its own request only; what it said is for the log.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let said =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    tracing::error!("a request handler panicked: {:?}", said.unwrap_or("no message"));
    Kind::Internal.error("this request met a fault of the server; others are not affected").into_response()
}
