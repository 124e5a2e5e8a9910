//! `GET /v1/models`: what is served, with its window under the names that clients look for.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use crate::errors::{ApiError, Kind};
use crate::service::Service;
use crate::shared::Shared;

/// `GET /v1/models`.
pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    let service = shared.service()?;
    let models: Vec<Value> = service.names().map(|name| describe(&service, name)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// `GET /v1/models/{id}`; an id may hold slashes.
pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let service = shared.service()?;
    let Path(id) =
        id.map_err(|_| Kind::ModelNotFound.error("the model's name in the path is not UTF-8 text"))?;
    service.require_name(&id)?;
    Ok(Json(describe(&service, &id)))
}

fn describe(service: &Service, name: &str) -> Value {
    let limits = service.engine.limits();
    json!({
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "lily",
        "max_model_len": limits.context,
        "context_length": limits.context,
        "meta": {
            "n_ctx": limits.context,
            "n_ctx_train": limits.model_context,
            "n_vocab": limits.vocabulary,
        },
    })
}
