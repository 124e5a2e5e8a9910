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
    let end = |model: Option<&Value>| model.map(|model| model["id"].clone());
    let (first, last) = (end(models.first()), end(models.last()));
    Ok(Json(json!({
        "object": "list",
        "data": models,
        // Anthropic's.
        "has_more": false,
        "first_id": first,
        "last_id": last,
        // Codex refuses a list without it, and has entries of its own for what is not in it. One for this model would have to bring the
        // whole of Codex's instructions, which are not the server's to replace.
        "models": [],
    })))
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
        "type": "model",
        "display_name": name,
        "created_at": date(service.created),
        "lifecycle": "active",
        "max_input_tokens": limits.context,
        "max_tokens": limits.context,
        "max_model_len": limits.context,
        "context_length": limits.context,
        "loaded_context_length": limits.context,
        "meta": {
            "n_ctx": limits.context,
            "n_ctx_train": limits.model_context,
            "n_vocab": limits.vocabulary,
        },
    })
}

/// Unix seconds as RFC 3339 has them. The days are counted in years that begin in March, so that a leap day ends one
/// (Howard Hinnant, chrono-compatible low-level date algorithms).
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, wanted) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_796_030_000, "2026-11-30T09:13:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), wanted);
        }
    }
}
