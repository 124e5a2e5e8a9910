//! Errors in Anthropic's shape.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::errors::{ApiError, Kind};

/// `{"type": "error", "error": {"type", "message"}}`, the body of an error response and of a stream's error event.
pub(crate) fn body(error: &ApiError) -> Value {
    let class = match error.kind.row().status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500 => "api_error",
        504 => "timeout_error",
        503 => "overloaded_error",
        _ => "invalid_request_error",
    };
    // The phrase by which clients know that they have to shorten the conversation.
    let message = match error.kind {
        Kind::ContextExceeded => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    json!({"type": "error", "error": {"type": class, "message": message}})
}

/// The response of an error.
pub(crate) fn response(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.kind.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(body(error))).into_response();
    if let Some(seconds) = error.retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}
