//! Every refusal and failure: one table from kind to status, type and code, in OpenAI's shape. `docs/api.md` prints it.

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lily_protocol::SubmitError;
use serde_json::{Value, json};

/// What went wrong, as far as status and code can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    InvalidJson,
    InvalidValue,
    MissingField,
    InvalidMessages,
    TooMuchWork,
    Unsupported,
    ContextExceeded,
    NotHttp,
    BadHost,
    Unauthorized,
    HostRefused,
    ModelNotFound,
    ResponseNotFound,
    NotFound,
    MethodNotAllowed,
    BodyTimeout,
    BodyTooLarge,
    AddressTooLong,
    MediaType,
    QueueFull,
    KeyBusy,
    HeadTooLarge,
    Internal,
    EngineFailed,
    TimedOut,
    NotOffered,
    Loading,
    ShuttingDown,
    Busy,
}

/// How one [`Kind`] appears on the wire, and when.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) status: u16,
    /// `error.type`
    pub(crate) class: &'static str,
    /// `error.code`
    pub(crate) code: &'static str,
    pub(crate) when: &'static str,
}

const REQUEST: &str = "invalid_request_error";
const SERVER: &str = "server_error";

const fn row(kind: Kind, status: u16, class: &'static str, code: &'static str, when: &'static str) -> Row {
    Row { kind, status, class, code, when }
}

/// In the order of [`Kind`]; a test holds them together.
#[rustfmt::skip]
pub(crate) const TABLE: [Row; 29] = [
    row(Kind::InvalidJson, 400, REQUEST, "invalid_json", "The body is not a JSON object, or nests deeper than 128."),
    row(Kind::InvalidValue, 400, REQUEST, "invalid_value", "A field has the wrong type or is out of range; `param` names it."),
    row(Kind::MissingField, 400, REQUEST, "missing_required_parameter", "A required field is absent; `param` names it."),
    row(Kind::InvalidMessages, 400, REQUEST, "invalid_messages", "`messages` cannot be rendered; `param` gives the place where it is known."),
    row(Kind::TooMuchWork, 400, REQUEST, "conversation_too_large", "The chat template took more steps, or wrote more text, than any conversation needs."),
    row(Kind::Unsupported, 400, REQUEST, "unsupported_parameter", "A field that would change the answer and is not offered; `param` names it."),
    row(Kind::ContextExceeded, 400, REQUEST, "context_length_exceeded", "The prompt leaves no room for an answer. Sent before a stream starts."),
    row(Kind::NotHttp, 400, REQUEST, "invalid_http", "What came is not a request of HTTP/1.1."),
    row(Kind::BadHost, 400, REQUEST, "invalid_host", "The `Host` header is missing, repeated or malformed."),
    row(Kind::Unauthorized, 401, "authentication_error", "invalid_api_key", "The server has API keys, and the request brings none of them. Everything needs one but `/health`, `/v1/models` and `/`."),
    row(Kind::HostRefused, 403, REQUEST, "host_not_allowed", "`Host` names a machine that this server does not answer for."),
    row(Kind::ModelNotFound, 404, REQUEST, "model_not_found", "An unknown model in `GET /v1/models/{id}`, or anywhere with `--strict-model`."),
    row(Kind::ResponseNotFound, 404, REQUEST, "response_not_found", "`/v1/responses/{id}`: nothing is stored."),
    row(Kind::NotFound, 404, REQUEST, "unknown_url", "No such path."),
    row(Kind::MethodNotAllowed, 405, REQUEST, "method_not_allowed", "The path exists, with another method (see `Allow`)."),
    row(Kind::BodyTimeout, 408, REQUEST, "body_timeout", "The body did not arrive in time."),
    row(Kind::BodyTooLarge, 413, REQUEST, "body_too_large", "The body is larger than the limit."),
    row(Kind::AddressTooLong, 414, REQUEST, "url_too_long", "The address is too long."),
    row(Kind::MediaType, 415, REQUEST, "unsupported_media_type", "`Content-Type` is not `application/json`, or the body is compressed."),
    row(Kind::QueueFull, 429, "rate_limit_error", "queue_full", "Too many requests wait; `Retry-After` guesses when a place is free."),
    row(Kind::KeyBusy, 429, "rate_limit_error", "key_busy", "The API key has as many requests running as `--requests-per-key` allows; `Retry-After` is set."),
    row(Kind::HeadTooLarge, 431, REQUEST, "headers_too_large", "The request's headers are too many, or too long."),
    row(Kind::Internal, 500, SERVER, "internal_error", "A fault of the server. Other requests are not affected."),
    row(Kind::EngineFailed, 500, SERVER, "generation_failed", "The engine gave up on this request. In a stream: a last event `data: {\"error\": ...}`."),
    row(Kind::TimedOut, 504, SERVER, "request_timeout", "The answer took longer than `--request-timeout`. In a stream: a last event with the error."),
    row(Kind::NotOffered, 501, REQUEST, "not_offered", "`/v1/embeddings`: this server makes none."),
    row(Kind::Loading, 503, SERVER, "model_loading", "The model is not ready yet; `Retry-After` is set."),
    row(Kind::ShuttingDown, 503, SERVER, "shutting_down", "The server is draining and takes no new work."),
    row(Kind::Busy, 503, SERVER, "server_busy", "Too many connections, or too many bytes of request bodies, at one moment; `Retry-After` is set."),
];

/// One error, on its way to a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) retry_after_seconds: Option<u64>,
}

impl Kind {
    pub(crate) fn row(self) -> &'static Row {
        let row = &TABLE[self as usize];
        debug_assert!(row.kind == self, "the table is out of order");
        row
    }

    pub(crate) fn error(self, message: impl Into<String>) -> ApiError {
        ApiError { kind: self, message: message.into(), param: None, retry_after_seconds: None }
    }
}

impl ApiError {
    /// Names the field at fault.
    pub(crate) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// `{"error": {...}}`, the body of an error response and of a stream's error event.
    pub(crate) fn body(&self) -> Value {
        let row = self.kind.row();
        json!({"error": {"message": self.message, "type": row.class, "param": self.param, "code": row.code}})
    }

    /// A field of a wrong type or out of range: what was found, what is wanted.
    pub(crate) fn value(field: &str, found: &Value, wanted: &str) -> Self {
        let message = format!("`{field}` is {}, and should be {wanted}", brief(found));
        Kind::InvalidValue.error(message).at(field)
    }
}

/// A value short enough to be quoted in an error message.
pub(crate) fn brief(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(items) if items.len() > 4 => format!("an array of {} elements", items.len()),
        Value::Object(map) if map.len() > 4 => format!("an object of {} fields", map.len()),
        _ => {
            let mut text = value.to_string();
            if text.len() > LONGEST {
                let cut = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
                text.truncate(cut);
                text.push_str("...");
            }
            text
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull { retry_after_seconds, .. } => {
                Kind::QueueFull.error(message).retry_after(retry_after_seconds.max(1))
            }
            SubmitError::ContextExceeded { .. } => Kind::ContextExceeded.error(message),
            SubmitError::EmptyPrompt => Kind::InvalidValue.error(message),
            // The server's own tokenizer made the ids, so a foreign one is the server's fault.
            SubmitError::UnknownToken { .. } => Kind::Internal.error(message),
            SubmitError::ShuttingDown => Kind::ShuttingDown.error(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.kind.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_finds_its_own_row() {
        for (at, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, at, "{:?}", row.kind);
            assert_eq!(row.kind.row().code, row.code);
            assert!(StatusCode::from_u16(row.status).is_ok());
        }
        assert_eq!(Kind::Busy as usize, TABLE.len() - 1, "a kind without a row");
    }

    #[test]
    fn submit_errors_keep_their_numbers() {
        let full: ApiError = SubmitError::QueueFull { waiting: 7, retry_after_seconds: 3 }.into();
        assert_eq!((full.kind, full.retry_after_seconds), (Kind::QueueFull, Some(3)));
        let long: ApiError = SubmitError::ContextExceeded { prompt: 90, context: 64 }.into();
        assert_eq!(long.kind.row().code, "context_length_exceeded");
        assert!(long.message.contains("maximum context length is 64 tokens"), "{}", long.message);
        assert!(long.message.contains("exceeds the available context size"), "{}", long.message);
    }

    #[test]
    fn quoted_values_are_short() {
        assert_eq!(brief(&json!(-3)), "-3");
        assert_eq!(brief(&json!([1, 2, 3, 4, 5])), "an array of 5 elements");
        let long = brief(&json!("é".repeat(200)));
        assert!(long.len() < 70 && long.ends_with("..."), "{long}");
    }
}
