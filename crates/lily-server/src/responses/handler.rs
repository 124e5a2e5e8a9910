//! One response from request to answer.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use crate::collect::collect_one;
use crate::errors::{ApiError, Kind};
use crate::http::body;
use crate::responses::request::{self, ResponseRequest};
use crate::responses::stream::ResponseWording;
use crate::responses::wire::{self, Head};
use crate::shared::Shared;
use crate::sse;

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (service, ResponseRequest { job, stream, echo, unknown }) =
        body::prepare(request, &shared, request::parse).await?;
    shared.unknown.report(&unknown);
    let answers = job.start(&service)?;
    let head = Head::new(&service.model_name, echo);
    if stream {
        return Ok(sse::response(answers, ResponseWording::new(head), shared.config.keep_alive));
    }
    let whole = collect_one(answers).await?;
    let last = whole.parts.len().saturating_sub(1);
    let item = |(at, part)| {
        let status = if at == last { wire::status(&whole.ending) } else { "completed" };
        wire::item(&wire::item_id(part), part, status)
    };
    let output: Vec<_> = whole.parts.iter().enumerate().map(item).collect();
    Ok(Json(head.ended(&output, &whole.ending)).into_response())
}

/// `/v1/responses/{id}`, with any method: there is nothing to fetch, cancel or delete.
pub(crate) async fn stored() -> ApiError {
    Kind::ResponseNotFound
        .error("responses are not stored here: send the whole conversation in `input` of a new request")
}
