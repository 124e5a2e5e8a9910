//! Tokenizer and chat template of one checkpoint, together.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::chat::{Chat, Prompt};
use crate::error::{PromptError, TextError};
use crate::files;
use crate::template::Template;
use crate::tokenizer::Tokenizer;

/// What ends a turn in ChatML, the form that the Qwen family is trained on.
const END_OF_TURN: &str = "<|im_end|>";
/// What opens the model's own turn.
const ASSISTANT_HEADER: &str = "<|im_start|>assistant\n";

/// The text side of one checkpoint. Read once, then shared behind an [`Arc`].
#[derive(Debug)]
pub struct TextModel {
    tokenizer: Arc<Tokenizer>,
    template: Option<Template>,
    eos_token: Option<String>,
}

/// The files of a checkpoint's text side, for a checkpoint that is not in a folder.
#[derive(Clone, Copy, Debug)]
pub struct TextParts<'a> {
    /// tokenizer.json
    pub tokenizer_json: &'a [u8],
    /// tokenizer_config.json
    pub tokenizer_config_json: Option<&'a [u8]>,
    /// chat_template.jinja; wins over the one in tokenizer_config.json.
    pub chat_template: Option<&'a str>,
}

/// Token ids at which a prompt may be cut: the borders between turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutMarkers {
    /// Each of these ids ends a turn.
    pub end_of_turn: Vec<u32>,
    /// The ids that open an assistant's turn, in order; empty where the vocabulary has no such marker.
    pub assistant_header: Vec<u32>,
}

impl TextModel {
    /// Reads tokenizer.json and, where they exist, tokenizer_config.json and chat_template.jinja of a folder.
    pub fn from_dir(dir: &Path) -> Result<Self, TextError> {
        let tokenizer_json = files::read(&dir.join("tokenizer.json"))?;
        let config = files::read_optional(&dir.join("tokenizer_config.json"))?;
        let template = match files::read_optional(&dir.join("chat_template.jinja"))? {
            Some(bytes) => Some(
                String::from_utf8(bytes)
                    .map_err(|e| TextError::Template(format!("chat_template.jinja: {e}")))?,
            ),
            None => None,
        };
        TextModel::from_parts(TextParts {
            tokenizer_json: &tokenizer_json,
            tokenizer_config_json: config.as_deref(),
            chat_template: template.as_deref(),
        })
    }

    /// The same from memory.
    pub fn from_parts(parts: TextParts<'_>) -> Result<Self, TextError> {
        let config: Value = match parts.tokenizer_config_json {
            Some(json) => serde_json::from_slice(json).map_err(|e| TextError::Config(e.to_string()))?,
            None => Value::Null,
        };
        let template = match parts.chat_template {
            Some(source) => Some(source.to_owned()),
            None => configured_template(&config)?,
        };
        let tokenizer = Tokenizer::from_json(parts.tokenizer_json)?;
        Ok(TextModel {
            template: template.map(|source| Template::new(source, &config, &tokenizer)).transpose()?,
            tokenizer: Arc::new(tokenizer),
            eos_token: token_text(config.get("eos_token")),
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokenizer, shared: for what outlives a borrow of this model.
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        self.tokenizer.clone()
    }

    /// Whether [`TextModel::prompt`] can succeed at all.
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The chat template, as the checkpoint wrote it.
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_ref().map(Template::source)
    }

    /// Renders a conversation and encodes it.
    pub fn prompt(&self, chat: &Chat) -> Result<Prompt, PromptError> {
        let template = self.template.as_ref().ok_or(PromptError::NoTemplate)?;
        template.prompt(&self.tokenizer, chat)
    }

    /// Ids after which the model has nothing more to say: the tokenizer's `eos_token`, and ChatML's end of turn where
    /// the template uses it. config.json and generation_config.json may name more.
    pub fn end_tokens(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = Vec::new();
        if let Some(id) = self.eos_token.as_deref().and_then(|text| self.tokenizer.token_id(text)) {
            ids.push(id);
        }
        if self.template.as_ref().is_none_or(|template| template.source().contains(END_OF_TURN)) {
            ids.extend(self.tokenizer.token_id(END_OF_TURN).filter(|id| !ids.contains(id)));
        }
        ids
    }

    /// Where prompts of this model may be cut.
    pub fn cut_markers(&self) -> CutMarkers {
        let Some(end) = self.tokenizer.token_id(END_OF_TURN) else {
            return CutMarkers::default();
        };
        CutMarkers {
            end_of_turn: vec![end],
            assistant_header: self.tokenizer.encode_marked(ASSISTANT_HEADER),
        }
    }
}

/// `chat_template` of tokenizer_config.json: one template, or several with names.
fn configured_template(config: &Value) -> Result<Option<String>, TextError> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(list)) => list
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template").and_then(Value::as_str))
            .map(|source| Some(source.to_owned()))
            .ok_or_else(|| TextError::Config("chat_template has no template named \"default\"".into())),
        Some(_) => Err(TextError::Config("chat_template is neither text nor a list of templates".into())),
    }
}

/// A token in tokenizer_config.json: its text, or an object that holds it.
pub(crate) fn token_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => fields.get("content").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    }
}
