//! A conversation as the variables that templates read: the same names and shapes that transformers passes.

use minijinja::Value;

use crate::chat::{Chat, Message, ToolCall};

/// The template's variables. `tools` and `documents` are always there and None when empty, as transformers has it.
pub(super) fn variables(chat: &Chat, messages: &[Message]) -> Value {
    let mut variables: Vec<(&str, Value)> = vec![
        ("messages", messages.iter().map(message).collect()),
        (
            "tools",
            if chat.tools.is_empty() { Value::from(()) } else { chat.tools.iter().map(json).collect() },
        ),
        ("documents", Value::from(())),
        ("add_generation_prompt", Value::from(chat.add_generation_prompt)),
    ];
    variables.extend(chat.enable_thinking.map(|on| ("enable_thinking", Value::from(on))));
    variables.extend(chat.preserve_thinking.map(|on| ("preserve_thinking", Value::from(on))));
    variables.extend(chat.extra.iter().map(|(name, value)| (name.as_str(), json(value))));
    Value::from_pairs(variables)
}

fn message(message: &Message) -> Value {
    let mut fields: Vec<(&str, Value)> =
        vec![("role", Value::from(message.role.as_str())), ("content", content(message))];
    fields.extend(message.reasoning.as_ref().map(|text| ("reasoning_content", Value::from(text))));
    if !message.tool_calls.is_empty() {
        fields.push(("tool_calls", message.tool_calls.iter().map(tool_call).collect()));
    }
    fields.extend(message.tool_call_id.as_ref().map(|id| ("tool_call_id", Value::from(id))));
    fields.extend(message.name.as_ref().map(|name| ("name", Value::from(name))));
    Value::from_pairs(fields)
}

/// Text, or parts where images stand in it.
fn content(message: &Message) -> Value {
    if message.images.is_empty() {
        return Value::from(&message.content);
    }
    let part = |kind: &str, text: Option<&str>| {
        let mut fields = vec![("type", Value::from(kind))];
        fields.extend(text.map(|text| ("text", Value::from(text))));
        Value::from_pairs(fields)
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for place in message.images.iter().chain([&message.content.len()]) {
        let text = &message.content[from..*place];
        parts.extend((!text.is_empty()).then(|| part("text", Some(text))));
        parts.push(part("image", None));
        from = *place;
    }
    parts.pop();
    parts.into_iter().collect()
}

fn tool_call(call: &ToolCall) -> Value {
    let function = [("name", Value::from(&call.name)), ("arguments", json(&call.arguments))];
    let mut fields = vec![("type", Value::from("function")), ("function", Value::from_pairs(function))];
    fields.extend(call.id.as_ref().map(|id| ("id", Value::from(id))));
    Value::from_pairs(fields)
}

/// JSON keeps its order of keys, and 1.0 stays a float.
pub(super) fn json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (None, Some(number), _) => Value::from(number),
            (None, None, number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => items.iter().map(json).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), json(value))))
        }
    }
}
