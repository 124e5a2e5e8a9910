//! What the tests of this crate share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;

use lily_text::{Chat, TextModel, parse_messages_with_images};
use serde_json::Value;

pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub(crate) fn read_json(path: PathBuf) -> Value {
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The fixtures' checkpoint: a vocabulary of 1021 tokens and a template that renders every shape by itself.
pub(crate) fn nano() -> TextModel {
    TextModel::from_dir(&fixture("nano")).unwrap()
}

/// The embedded demo model's text side.
pub(crate) fn demo() -> TextModel {
    TextModel::from_dir(&fixture("../../assets/demo")).unwrap()
}

/// The nano vocabulary with another template.
pub(crate) fn with_template(template: &str) -> TextModel {
    try_template(template).unwrap()
}

pub(crate) fn try_template(template: &str) -> Result<TextModel, lily_text::TextError> {
    let tokenizer_json = std::fs::read(fixture("nano/tokenizer.json")).unwrap();
    TextModel::from_parts(lily_text::TextParts {
        tokenizer_json: &tokenizer_json,
        tokenizer_config_json: None,
        chat_template: Some(template),
    })
}

/// A conversation from a golden's `messages` and `options`.
pub(crate) fn chat(messages: &Value, options: &Value) -> Result<Chat, lily_text::MessageError> {
    let mut chat = Chat::new(parse_messages_with_images(messages)?);
    chat.tools = options["tools"].as_array().cloned().unwrap_or_default();
    chat.add_generation_prompt = options["add_generation_prompt"].as_bool().unwrap_or(false);
    chat.enable_thinking = options["enable_thinking"].as_bool();
    chat.preserve_thinking = options["preserve_thinking"].as_bool();
    Ok(chat)
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Cases of a property: as many as PROPTEST_CASES says, else the usual number.
pub(crate) fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}
