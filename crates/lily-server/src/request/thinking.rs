//! Whether the model reasons before it answers, under every name that clients use.

use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind};
use crate::read::Fields;

/// Whether to reason: the first name that is present decides. Every one of them is read, so that a wrong type is an
/// error wherever it stands.
pub(crate) fn thinking(fields: Fields, options: Fields) -> Result<Option<bool>, ApiError> {
    let empty = Map::new();
    let reasoning = Fields::new(fields.object("reasoning")?.unwrap_or(&empty), "reasoning.");
    refuse_hiding(reasoning)?;
    let wishes = [
        (budget(fields, options)? == Some(0)).then_some(false),
        fields.boolean("enable_thinking")?,
        options.boolean("enable_thinking")?,
        thinking_field(fields)?,
        reasoning.boolean("enabled")?,
        effort(fields.string("reasoning_effort")?),
        effort(reasoning.string("effort")?),
        effort(options.string("reasoning_effort")?),
    ];
    Ok(wishes.into_iter().flatten().next())
}

/// Most tokens of reasoning: the first name that is present decides; 0 is no reasoning at all.
pub(crate) fn budget(fields: Fields, options: Fields) -> Result<Option<usize>, ApiError> {
    let empty = Map::new();
    let reasoning = Fields::new(fields.object("reasoning")?.unwrap_or(&empty), "reasoning.");
    let thinking = fields.get("thinking").and_then(Value::as_object).unwrap_or(&empty);
    let wishes = [
        fields.bound("thinking_budget")?,
        fields.bound("thinking_token_budget")?,
        fields.bound("reasoning_budget")?,
        options.bound("thinking_budget")?,
        reasoning.bound("max_tokens")?,
        Fields::new(thinking, "thinking.").bound("budget_tokens")?,
    ];
    Ok(wishes.into_iter().flatten().next().flatten())
}

/// `exclude: true` would hide the reasoning.
fn refuse_hiding(reasoning: Fields) -> Result<(), ApiError> {
    if reasoning.boolean("exclude")? == Some(true) {
        let message =
            "`reasoning.exclude` is not supported: leave it out, and leave `reasoning_content` aside";
        return Err(Kind::Unsupported.error(message).at("reasoning.exclude"));
    }
    Ok(())
}

/// `"none"` is off. How much effort is not something this model can be told, so any other leaves it to the template.
fn effort(effort: Option<&str>) -> Option<bool> {
    effort.filter(|&effort| effort == "none").map(|_| false)
}

/// Anthropic's form, which some clients send to every server, or a plain boolean.
fn thinking_field(fields: Fields) -> Result<Option<bool>, ApiError> {
    const WANTED: &str = "true, false, or an object with type \"enabled\", \"adaptive\" or \"disabled\"";
    let Some(value) = fields.get("thinking") else { return Ok(None) };
    let known = match value {
        Value::Bool(on) => Some(*on),
        Value::Object(object) => match object.get("type").and_then(Value::as_str) {
            Some("enabled" | "adaptive") => Some(true),
            Some("disabled") => Some(false),
            _ => None,
        },
        _ => None,
    };
    known.map(Some).ok_or_else(|| ApiError::value("thinking", value, WANTED))
}
