//! The one normaliser of OpenAI-shaped messages.
//!
//! Clients disagree on details that templates choke on: content as text, as parts, as null; arguments as a string or as
//! an object; reasoning under two names. Everything that speaks a chat protocol goes through [`parse_messages`], so that
//! each of these is decided once. Unknown fields are ignored; what cannot be shown to the model (an image, an unknown
//! role) is an error that names its place.

use serde_json::{Map, Value};

use crate::chat::{Message, Role, ToolCall};
use crate::error::MessageError;

type Parsed<T> = Result<T, MessageError>;

/// Reads the `messages` array of a chat request.
///
/// An empty array is read as an empty list: whether that is an error is for the caller to say.
pub fn parse_messages(messages: &Value) -> Result<Vec<Message>, MessageError> {
    let list = parse_messages_with_images(messages)?;
    match list.iter().position(|message| !message.images.is_empty()) {
        Some(i) => Err(image_refused(&messages[i]["content"], &format!("messages[{i}].content"))),
        None => Ok(list),
    }
}

/// Names the first image of a content that has one.
fn image_refused(content: &Value, path: &str) -> MessageError {
    let parts = content.as_array().map_or(&[][..], Vec::as_slice);
    let (place, kind) = match parts.iter().enumerate().find(|(_, part)| is_image(part)) {
        Some((i, part)) => (format!("{path}[{i}]"), part["type"].as_str().unwrap_or("image")),
        None => (path.to_owned(), "image"),
    };
    MessageError::new(place, format!("content of type {kind:?} is not supported: this model reads text only"))
}

/// The same for those who show images to the model, or who only want the rendered text: keeps their places
/// ([`Message::images`]).
pub fn parse_messages_with_images(messages: &Value) -> Result<Vec<Message>, MessageError> {
    let Value::Array(list) = messages else {
        return Err(MessageError::new(
            "messages",
            format!("expected an array of messages, found {}", kind(messages)),
        ));
    };
    list.iter().enumerate().map(|(i, message)| parse_message(message, &format!("messages[{i}]"))).collect()
}

fn parse_message(message: &Value, path: &str) -> Parsed<Message> {
    let Value::Object(fields) = message else {
        return Err(MessageError::new(path, format!("expected an object, found {}", kind(message))));
    };
    let role = parse_role(fields, path)?;
    let assistant = role == Role::Assistant;
    let (content, images) = parse_content(fields, path)?;
    Ok(Message {
        role,
        content,
        images,
        reasoning: if assistant { parse_reasoning(fields, path)? } else { None },
        tool_calls: if assistant { parse_tool_calls(fields, path)? } else { Vec::new() },
        tool_call_id: optional_text(fields, "tool_call_id", path)?,
        name: optional_text(fields, "name", path)?,
    })
}

fn parse_role(fields: &Map<String, Value>, path: &str) -> Parsed<Role> {
    let path = format!("{path}.role");
    let role = match fields.get("role") {
        Some(Value::String(role)) => role,
        Some(other) => {
            return Err(MessageError::new(path, format!("expected a string, found {}", kind(other))));
        }
        None => return Err(MessageError::new(path, "a message needs a role")),
    };
    Ok(match role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" => Role::Tool,
        other => {
            return Err(MessageError::new(
                path,
                format!(
                    "unknown role {:?}; wanted system, developer, user, assistant, tool or function",
                    shorten(other)
                ),
            ));
        }
    })
}

/// Content and refusal: an assistant's refusal is what it said.
fn parse_content(fields: &Map<String, Value>, path: &str) -> Parsed<(String, Vec<usize>)> {
    let (text, images) = match fields.get("content") {
        Some(Value::Array(parts)) if parts.iter().any(is_image) => {
            text_and_images(parts, &format!("{path}.content"))?
        }
        Some(content) => (text_of(content, &format!("{path}.content"))?, Vec::new()),
        None => (String::new(), Vec::new()),
    };
    match fields.get("refusal") {
        Some(Value::String(refusal)) if text.is_empty() => Ok((refusal.clone(), images)),
        _ => Ok((text, images)),
    }
}

/// An image under any of the names that clients use.
fn is_image(part: &Value) -> bool {
    matches!(part["type"].as_str(), Some("image" | "image_url" | "input_image"))
}

fn text_and_images(parts: &[Value], path: &str) -> Parsed<(String, Vec<usize>)> {
    let (mut text, mut images) = (String::new(), Vec::new());
    for (i, part) in parts.iter().enumerate() {
        if is_image(part) {
            images.push(text.len());
        } else {
            text.push_str(part_text(part, &format!("{path}[{i}]"))?);
        }
    }
    Ok((text, images))
}

fn text_of(content: &Value, path: &str) -> Parsed<String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut text = String::new();
            for (i, part) in parts.iter().enumerate() {
                text.push_str(part_text(part, &format!("{path}[{i}]"))?);
            }
            Ok(text)
        }
        Value::Object(_) => Ok(part_text(content, path)?.to_owned()),
        other => Err(MessageError::new(
            path,
            format!("expected text, a list of text parts or null, found {}", kind(other)),
        )),
    }
}

fn part_text<'a>(part: &'a Value, path: &str) -> Parsed<&'a str> {
    let fields = match part {
        Value::String(text) => return Ok(text),
        Value::Null => return Ok(""),
        Value::Object(fields) => fields,
        other => {
            return Err(MessageError::new(path, format!("expected a text part, found {}", kind(other))));
        }
    };
    let named = match fields.get("type") {
        Some(Value::String(name)) => Some(name.as_str()),
        Some(Value::Null) | None => None,
        Some(other) => {
            return Err(MessageError::new(
                format!("{path}.type"),
                format!("expected a string, found {}", kind(other)),
            ));
        }
    };
    let key = match named {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        None if fields.contains_key("text") => "text",
        None => return Err(MessageError::new(path, "a content part needs a type; wanted \"text\"")),
        Some(name) => {
            return Err(MessageError::new(
                path,
                format!("content of type {:?} is not supported: this model reads text only", shorten(name)),
            ));
        }
    };
    match fields.get(key) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Null) => Ok(""),
        Some(other) => Err(MessageError::new(
            format!("{path}.{key}"),
            format!("expected a string, found {}", kind(other)),
        )),
        None => Err(MessageError::new(path, format!("a part of this type needs a field {key:?}"))),
    }
}

/// `reasoning_content` and, where it is absent, `reasoning`: both names are in use.
fn parse_reasoning(fields: &Map<String, Value>, path: &str) -> Parsed<Option<String>> {
    for name in ["reasoning_content", "reasoning"] {
        match fields.get(name) {
            Some(Value::Null) | None => {}
            Some(value) => return text_of(value, &format!("{path}.{name}")).map(Some),
        }
    }
    Ok(None)
}

/// `tool_calls`, or the older `function_call`.
fn parse_tool_calls(fields: &Map<String, Value>, path: &str) -> Parsed<Vec<ToolCall>> {
    match fields.get("tool_calls") {
        Some(Value::Array(calls)) => calls
            .iter()
            .enumerate()
            .map(|(i, call)| parse_tool_call(call, &format!("{path}.tool_calls[{i}]")))
            .collect(),
        Some(Value::Null) | None => match fields.get("function_call") {
            Some(Value::Null) | None => Ok(Vec::new()),
            Some(call) => Ok(vec![parse_tool_call(call, &format!("{path}.function_call"))?]),
        },
        Some(other) => Err(MessageError::new(
            format!("{path}.tool_calls"),
            format!("expected an array, found {}", kind(other)),
        )),
    }
}

fn parse_tool_call(call: &Value, path: &str) -> Parsed<ToolCall> {
    let Value::Object(outer) = call else {
        return Err(MessageError::new(path, format!("expected an object, found {}", kind(call))));
    };
    let (function, place) = match outer.get("function") {
        Some(Value::Object(function)) => (function, format!("{path}.function")),
        Some(Value::Null) | None => (outer, path.to_owned()),
        Some(other) => {
            return Err(MessageError::new(
                format!("{path}.function"),
                format!("expected an object, found {}", kind(other)),
            ));
        }
    };
    let name = match function.get("name") {
        Some(Value::String(name)) => name.clone(),
        Some(other) => {
            return Err(MessageError::new(
                format!("{place}.name"),
                format!("expected a string, found {}", kind(other)),
            ));
        }
        None => return Err(MessageError::new(place, "a tool call needs the name of its function")),
    };
    Ok(ToolCall {
        id: optional_text(outer, "id", path)?,
        name,
        arguments: parse_arguments(function.get("arguments")),
    })
}

/// An object, always: templates walk through the arguments by name. The protocol carries them as a string of JSON, and a
/// model may have written that string badly; such text is kept under the name `arguments`, so that the model can see
/// what it did.
fn parse_arguments(arguments: Option<&Value>) -> Value {
    let whole = |value: Value| Value::Object(Map::from_iter([("arguments".to_owned(), value)]));
    match arguments {
        Some(Value::Object(_)) => arguments.cloned().unwrap_or_default(),
        Some(Value::Null) | None => Value::Object(Map::new()),
        Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(object @ Value::Object(_)) => object,
            Ok(Value::Null) => Value::Object(Map::new()),
            _ => whole(Value::String(text.clone())),
        },
        Some(other) => whole(other.clone()),
    }
}

fn optional_text(fields: &Map<String, Value>, name: &str, path: &str) -> Parsed<Option<String>> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Null) | None => Ok(None),
        Some(other) => Err(MessageError::new(
            format!("{path}.{name}"),
            format!("expected a string, found {}", kind(other)),
        )),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Names in error messages come from the request: keep them to a line.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
