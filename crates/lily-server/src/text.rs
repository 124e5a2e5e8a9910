//! The text side by itself: `/tokenize`, `/detokenize`, `/apply-template`. Nothing reaches the engine.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Map, Value, json};

use crate::chat::request::conversation;
use crate::completions::token_ids;
use crate::errors::{ApiError, Kind};
use crate::http::body;
use crate::read::Fields;
use crate::request::tools::{Form, Tools};
use crate::request::{missing, unfold_extra_body, unknown_names};
use crate::service::Service;
use crate::shared::Shared;
use crate::tables::CHAT;

/// Tokens of which `/tokenize` gives the pieces, each an object of hundreds of bytes in memory: as many as the longest context has.
const MOST_PIECES: usize = 262_144;

/// `POST /tokenize`.
pub(crate) async fn tokenize(shared: State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    answer(shared, request, |body, service| {
        let fields = Fields::new(&body, "");
        let wanted = "the text whose tokens are wanted";
        let content = fields
            .string("content")?
            .or(fields.string("prompt")?)
            .ok_or_else(|| missing("content", wanted))?;
        // Special tokens around the text: this model has none, so both values are obeyed.
        fields.boolean("add_special")?;
        fields.boolean("add_special_tokens")?;
        let tokenizer = service.text.tokenizer();
        let tokens = match fields.boolean("parse_special")?.unwrap_or(false) {
            true => tokenizer.encode_marked(content),
            false => tokenizer.encode_text(content),
        };
        let count = tokens.len();
        let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        if with_pieces && count > MOST_PIECES {
            let message = format!(
                "the text has {count} tokens, and pieces are given of at most {MOST_PIECES}: send it in parts"
            );
            return Err(Kind::InvalidValue.error(message).at("with_pieces"));
        }
        let tokens = match with_pieces {
            true => {
                let piece = |id: u32| {
                    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                    let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
                    json!({"id": id, "piece": piece})
                };
                tokens.into_iter().map(piece).collect()
            }
            false => json!(tokens),
        };
        Ok(json!({"tokens": tokens, "count": count, "max_model_len": service.engine.limits().context}))
    })
    .await
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    shared: State<Arc<Shared>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    answer(shared, request, |body, service| {
        let tokens = match body.get("tokens") {
            Some(Value::Array(ids)) => token_ids(ids, "tokens", service.engine.limits().vocabulary)?,
            None | Some(Value::Null) => return Err(missing("tokens", "an array of token ids")),
            Some(other) => return Err(ApiError::value("tokens", other, "an array of token ids")),
        };
        Ok(json!({"content": service.text.tokenizer().decode(&tokens, false)}))
    })
    .await
}

/// `POST /apply-template`: the prompt of a chat completion's body.
pub(crate) async fn apply_template(
    shared: State<Arc<Shared>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    answer(shared, request, |mut body, service| {
        unfold_extra_body(&mut body)?;
        let fields = Fields::new(&body, "");
        let continued = fields.boolean("continue_final_message")?.unwrap_or(false);
        let opens = fields.boolean("add_generation_prompt")?.unwrap_or(true);
        body.remove("add_generation_prompt");
        let mut unknown = unknown_names(&body, &CHAT)?;
        let tools = Tools::take(&mut body, Form::Chat, &mut unknown)?;
        let mut conversation = conversation(&mut body, tools.offered, continued)?;
        conversation.opens_turn = opens;
        Ok(json!({"prompt": conversation.prompt(&service.text)?.text}))
    })
    .await
}

/// Reads the body and does the work outside the async threads.
async fn answer(
    State(shared): State<Arc<Shared>>,
    request: Request,
    work: fn(Map<String, Value>, &Service) -> Result<Value, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let (_, made) = body::prepare(request, &shared, work).await?;
    Ok(Json(made))
}
