//! What the API families read alike.

mod conversation;
mod thinking;
pub(crate) mod tools;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use lily_protocol::Sampling;
use lily_text::{MessageError, PromptError};
use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind, brief};
use crate::fields::Family;
use crate::read::Fields;
use crate::service::Service;

pub(crate) use conversation::{Conversation, template_options};
pub(crate) use thinking::{budget, thinking};

/// Most answers to one prompt.
pub(crate) const MOST_CHOICES: u32 = 16;
/// Most alternatives per token (OpenAI's own limit).
pub(crate) const MOST_ALTERNATIVES: u32 = 20;
pub(crate) const LARGEST_COUNT: u32 = i32::MAX as u32;
const MOST_STOP_STRINGS: usize = 16;
const LONGEST_STOP_STRING: usize = 1024;
/// Template variables taken from `chat_template_kwargs`.
const TEMPLATE_OPTIONS: [&str; 4] =
    ["enable_thinking", "preserve_thinking", "reasoning_effort", "thinking_budget"];

/// A client library's `extra_body` that reached the wire as it is: its fields count where the request has not got them.
pub(crate) fn unfold_extra_body(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    match body.remove("extra_body") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(extra)) => {
            for (name, value) in extra {
                if body.get(&name).is_none_or(Value::is_null) {
                    body.insert(name, value);
                }
            }
            Ok(())
        }
        Some(other) => Err(ApiError::value("extra_body", &other, "an object")),
    }
}

/// Refuses what the family does not offer; the names that nothing here knows.
pub(crate) fn unknown_names(body: &Map<String, Value>, family: &Family) -> Result<Vec<String>, ApiError> {
    let mut unknown: Vec<String> = family.classify(body)?.into_iter().map(String::from).collect();
    if let Some(options) = Fields::new(body, "").object("chat_template_kwargs")? {
        family.classify(options).map_err(|error| {
            let name = error.param.clone().unwrap_or_default();
            error.at(format!("chat_template_kwargs.{name}"))
        })?;
        let foreign = options.keys().filter(|name| !TEMPLATE_OPTIONS.contains(&name.as_str()));
        unknown.extend(foreign.map(|name| format!("chat_template_kwargs.{name}")));
    }
    Ok(unknown)
}

/// `model`: any name will do, unless the operator is strict.
pub(crate) fn check_model(fields: Fields, service: &Service) -> Result<(), ApiError> {
    match fields.string("model")? {
        Some(name) if service.strict_model => service.require_name(name),
        _ => Ok(()),
    }
}

/// Most tokens of the answer, `None` inside for no bound: by the family's own name, else by the first other one that is there.
/// Clients send one family's name to another, and a limit that is not obeyed is an answer without end.
pub(crate) fn token_limit(fields: Fields, own: &str) -> Result<Option<Option<usize>>, ApiError> {
    let mut limit = fields.limit(own, LARGEST_COUNT)?;
    for name in ["max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict"] {
        let other = fields.limit(name, LARGEST_COUNT)?;
        limit = limit.or(other);
    }
    Ok(limit)
}

/// Stop strings, by the family's own name, else by the other one.
pub(crate) fn stop_strings(fields: Fields, own: &str) -> Result<Vec<String>, ApiError> {
    let mut stop = fields.strings(own, MOST_STOP_STRINGS, LONGEST_STOP_STRING)?;
    for name in ["stop", "stop_sequences"] {
        let other = fields.strings(name, MOST_STOP_STRINGS, LONGEST_STOP_STRING)?;
        stop = stop.or(other);
    }
    Ok(stop.unwrap_or_default())
}

/// Constrained answers, by the names of responses and of messages, wherever they are sent.
pub(crate) fn check_formats(fields: Fields) -> Result<(), ApiError> {
    for (name, plain) in [("text", Some("text")), ("output_config", None)] {
        let format =
            fields.get(name).and_then(|object| object.get("format")).filter(|value| !value.is_null());
        let Some(format) = format.filter(|format| plain.is_none_or(|plain| format["type"] != plain)) else {
            continue;
        };
        let hint = plain.map_or("".to_string(), |plain| format!(" or send {{\"type\":\"{plain}\"}}"));
        let message =
            format!("`{name}.format` (here {}) is not supported here: leave it out{hint}", brief(format));
        return Err(Kind::Unsupported.error(message).at(format!("{name}.format")));
    }
    Ok(())
}

/// `stream_options.include_usage`.
pub(crate) fn include_usage(fields: Fields) -> Result<bool, ApiError> {
    match fields.object("stream_options")? {
        Some(options) => {
            Ok(Fields::new(options, "stream_options.").boolean("include_usage")?.unwrap_or(false))
        }
        None => Ok(false),
    }
}

/// How tokens are chosen.
pub(crate) fn sampling(fields: Fields, service: &Service) -> Result<Sampling, ApiError> {
    let default = &service.sampling;
    let other_name = fields.number("repeat_penalty", 0.01, 10.0)?;
    let repetition = fields.number("repetition_penalty", 0.01, 10.0)?.or(other_name);
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(default.top_p);
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0, 2.0)?.unwrap_or(default.temperature),
        // 0 means the most probable token alone, as the smallest positive share does.
        top_p: top_p.max(f32::MIN_POSITIVE),
        top_k: fields.integer("top_k", 0, LARGEST_COUNT)?.map_or(default.top_k, |count| count as usize),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(default.min_p),
        repetition_penalty: repetition.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(default.frequency_penalty),
        logit_bias: fields.logit_bias("logit_bias", service.engine.limits().vocabulary)?,
        seed: fields.seed("seed")?.unwrap_or(service.seed).unwrap_or_else(random_seed),
    })
}

/// 64 bits that differ from call to call. Nothing secret hangs on them.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A conversation that cannot be read.
pub(crate) fn message_error(error: MessageError) -> ApiError {
    Kind::InvalidMessages.error(error.to_string()).at(error.path)
}

/// What the template refuses is the request's affair: the same template renders other conversations.
pub(crate) fn prompt_error(error: PromptError) -> ApiError {
    let kind = match error {
        PromptError::TooMuchWork(_) => Kind::TooMuchWork,
        PromptError::NoTemplate => Kind::Unsupported,
        _ => Kind::InvalidMessages,
    };
    kind.error(error.to_string()).at("messages")
}

/// A required field that is not there.
pub(crate) fn missing(path: impl Into<String>, wanted: &str) -> ApiError {
    let path = path.into();
    Kind::MissingField.error(format!("`{path}` is missing, and should be {wanted}")).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_template_could_not_do_has_its_own_name() {
        let code = |error: PromptError| {
            let error = prompt_error(error);
            assert_eq!(error.param.as_deref(), Some("messages"));
            error.kind.row().code
        };
        assert_eq!(code(PromptError::TooMuchWork("it wrote too much text".into())), "conversation_too_large");
        assert_eq!(code(PromptError::NoTemplate), "unsupported_parameter");
        assert_eq!(code(PromptError::Refused("no".into())), "invalid_messages");
    }
}
