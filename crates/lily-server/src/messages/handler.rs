//! One message from request to response.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::collect::collect_one;
use crate::errors::ApiError;
use crate::http::body;
use crate::ids::unique_id;
use crate::messages::request::{self, MessageRequest};
use crate::messages::stream::MessageWording;
use crate::messages::{errors, wire};
use crate::shared::Shared;
use crate::sse;

/// `POST /v1/messages`.
pub(crate) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    answer(&shared, request).await.unwrap_or_else(|error| errors::response(&error))
}

/// `POST /v1/messages/count_tokens`: nothing reaches the engine.
pub(crate) async fn count_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    count(&shared, request).await.unwrap_or_else(|error| errors::response(&error))
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let (service, MessageRequest { job, stream, unknown }) =
        body::prepare(request, shared, request::parse).await?;
    shared.unknown.report(&unknown);
    let prompt_tokens = job.prompt.tokens.len();
    let answers = job.start(&service)?;
    let (id, model) = (unique_id("msg_"), service.model_name.clone());
    if stream {
        let wording = MessageWording::new(id, model, prompt_tokens);
        return Ok(sse::response(answers, wording, shared.config.keep_alive));
    }
    let whole = collect_one(answers).await?;
    let (reason, sequence) = wire::stop(&whole.ending);
    let content = whole.parts.into_iter().map(wire::block).collect();
    let usage = wire::usage(&whole.ending.figures);
    Ok(Json(wire::message(&id, &model, content, (Some(reason), sequence), usage)).into_response())
}

async fn count(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    let (_, prompt) = body::prepare(request, shared, request::prompt).await?;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})).into_response())
}
