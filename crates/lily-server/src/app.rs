//! The routes, and what stands before all of them.

use std::any::Any;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::errors::{ApiError, Kind};
use crate::http::gate::gate;
use crate::shared::Shared;
use crate::{chat, completions, messages, models, responses, status, text};

/// Everything that is served. `extra`: routes of the caller, under the same checks.
pub(crate) fn router(shared: Arc<Shared>, extra: Router) -> Router {
    let api = Router::new()
        .route("/chat/completions", post(chat::complete))
        .route("/completions", post(completions::complete))
        .route("/responses", post(responses::create))
        .route("/responses/{*id}", any(responses::stored))
        .route("/embeddings", post(no_embeddings))
        .route("/messages", post(messages::create))
        .route("/messages/count_tokens", post(messages::count_tokens))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/apply-template", post(text::apply_template))
        .route("/props", get(status::props))
        .route("/slots", get(status::slots))
        .route("/metrics", get(status::metrics))
        .route("/health", get(health))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::one));
    Router::new()
        .nest("/v1", api.clone())
        .merge(api)
        .route("/api/{*rest}", any(no_ollama))
        .route("/", get(about))
        .with_state(shared.clone())
        .merge(extra)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(shared, gate))
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    match shared.service() {
        Ok(_) => Json(json!({"status": "ok"})).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "loading"}))).into_response(),
    }
}

async fn no_embeddings() -> ApiError {
    Kind::NotOffered.error("embeddings are not offered: this model answers, and makes no vectors")
}

/// What Ollama's clients ask for. They need to be told, since they take a bare 404 for a missing model.
async fn no_ollama(request: Request) -> ApiError {
    let shown: String = request.uri().path().chars().take(200).collect();
    Kind::NotFound.error(format!(
        "{shown:?} belongs to Ollama's API, which is not offered here: use the client's OpenAI mode with this address and /v1"
    ))
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
            "there is no {method} {shown:?} here; there are POST /v1/chat/completions, /v1/completions, /v1/responses and \
             /v1/messages, GET /v1/models, /health, /props, /slots and /metrics, POST /tokenize, /detokenize and /apply-template"
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
