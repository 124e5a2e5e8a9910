//! What is known of the server and its model: `/props`, `/slots`, `/metrics`. None of it shows what is asked or answered.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::shared::Shared;

/// `GET /props`, under the names of llama.cpp's server.
pub(crate) async fn props(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let service = shared.service()?;
    let (limits, sampling) = (service.engine.limits(), &service.sampling);
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": limits.context,
            "params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
                "n_predict": -1,
            },
        },
        "total_slots": service.parallel,
        "model_alias": service.model_name,
        "model_path": service.model_name,
        "modalities": {"vision": false, "audio": false},
        "chat_template": service.text.chat_template().unwrap_or_default(),
        "build_info": concat!("lily-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": service.engine.load().asleep,
    })))
}

/// `GET /slots`: one entry for each request that may be answered at the same time.
pub(crate) async fn slots(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let service = shared.service()?;
    let (context, running) = (service.engine.limits().context, service.engine.load().running);
    let slot = |id| json!({"id": id, "n_ctx": context, "speculative": false, "is_processing": id < running});
    Ok(Json((0..service.parallel).map(slot).collect()))
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, ApiError> {
    let service = shared.service()?;
    let page = service.metrics.page(service.engine.load());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}
