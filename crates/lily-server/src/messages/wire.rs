//! The JSON of Anthropic's messages.

use lily_protocol::FinishReason;
use serde_json::{Map, Value, json};

use crate::answer::{Ending, Figures};
use crate::collect::Part;

/// Reasoning is sent back with a signature, which is not checked here; clients want one that is not blank.
pub(crate) const SIGNATURE: &str = "lily";

pub(crate) fn usage(figures: &Figures) -> Value {
    json!({
        "input_tokens": figures.prompt_tokens.saturating_sub(figures.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": figures.cached_tokens,
        "output_tokens": figures.completion_tokens,
    })
}

/// `stop_reason` and `stop_sequence`.
pub(crate) fn stop(ending: &Ending) -> (&'static str, Option<&str>) {
    match (ending.reason, &ending.stop) {
        (FinishReason::Length, _) => ("max_tokens", None),
        _ if ending.calls > 0 => ("tool_use", None),
        (FinishReason::Stop, Some(stop)) => ("stop_sequence", Some(stop)),
        (FinishReason::Stop, None) => ("end_turn", None),
    }
}

pub(crate) fn message(
    id: &str,
    model: &str,
    content: Vec<Value>,
    stop: (Option<&str>, Option<&str>),
    usage: Value,
) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop.0,
        "stop_sequence": stop.1,
        "usage": usage,
    })
}

/// A call's name in this protocol.
pub(crate) fn tool_use_id(id: &str) -> String {
    format!("toolu_{}", id.strip_prefix("call_").unwrap_or(id))
}

pub(crate) fn block(part: Part) -> Value {
    match part {
        Part::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Call { id, name, arguments } => {
            json!({"type": "tool_use", "id": tool_use_id(&id), "name": name, "input": input(&arguments)})
        }
    }
}

/// The arguments as an object. Of those that were broken off, the whole members remain: the last comma outside a string
/// ends the last of them.
fn input(arguments: &str) -> Value {
    if let Ok(whole) = serde_json::from_str(arguments) {
        return whole;
    }
    let commas = arguments.match_indices(',').map(|(at, _)| at).collect::<Vec<_>>();
    let closed =
        |at: &usize| serde_json::from_str::<Map<String, Value>>(&format!("{}}}", &arguments[..*at])).ok();
    commas.iter().rev().find_map(closed).map_or_else(|| json!({}), Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_members_remain_of_broken_arguments() {
        assert_eq!(input(r#"{"a":1}"#), json!({"a": 1}));
        assert_eq!(input(r#"{"a":"x, y","b":[1,2],"c":"ha, l"#), json!({"a": "x, y", "b": [1, 2]}));
        assert_eq!(input(r#"{"a":"ha, l"#), json!({}));
        assert_eq!(input(""), json!({}));
    }
}
