//! `input`: items, turned into the messages of chat completions.

use serde_json::{Map, Value, json};

use crate::errors::{ApiError, Kind, brief};
use crate::read::Fields;
use crate::request::missing;

/// Messages in the form of chat completions, and for each the place where it began in the request.
#[derive(Default)]
pub(crate) struct Messages {
    pub(crate) list: Vec<Value>,
    pub(crate) places: Vec<String>,
    /// Types of items that were left out.
    pub(crate) left_out: Vec<String>,
}

impl Messages {
    /// `instructions` and `input`.
    pub(crate) fn read(body: &mut Map<String, Value>) -> Result<Messages, ApiError> {
        let mut messages = Messages::default();
        if let Some(text) = Fields::new(body, "").string("instructions")? {
            messages.add("instructions", json!({"role": "system", "content": text}));
        }
        match body.remove("input") {
            None | Some(Value::Null) => return Err(missing("input", "a string or an array of items")),
            Some(Value::String(text)) => messages.add("input", json!({"role": "user", "content": text})),
            Some(Value::Array(items)) => {
                for (at, item) in items.into_iter().enumerate() {
                    messages.item(item, &format!("input[{at}]"))?;
                }
                // As the empty string: some clients ask so whether the server is there.
                if messages.list.is_empty() {
                    messages.add("input", json!({"role": "user", "content": ""}));
                }
            }
            Some(other) => return Err(ApiError::value("input", &other, "a string or an array of items")),
        }
        Ok(messages)
    }

    fn add(&mut self, place: &str, message: Value) {
        self.list.push(message);
        self.places.push(place.to_owned());
    }

    fn item(&mut self, item: Value, path: &str) -> Result<(), ApiError> {
        let mut fields = match item {
            Value::Object(fields) => fields,
            Value::String(text) => {
                self.add(path, json!({"role": "user", "content": text}));
                return Ok(());
            }
            other => return Err(ApiError::value(path, &other, "an item")),
        };
        let prefix = format!("{path}.");
        let kind = Fields::new(&fields, &prefix).string("type")?.unwrap_or("message").to_owned();
        match kind.as_str() {
            "message" => self.message(fields, path),
            "reasoning" => self.reasoning(&fields),
            "function_call" | "custom_tool_call" => self.call(&mut fields, path)?,
            "function_call_output" | "custom_tool_call_output" => self.output(&mut fields, path)?,
            "item_reference" => {
                let message = format!(
                    "`{path}` refers to a stored item, and nothing is stored here: send the item itself"
                );
                return Err(Kind::Unsupported.error(message).at(path));
            }
            // What hosted tools left behind says nothing that the model could have asked for here.
            _ => self.left_out.push(format!("input[].type={kind}")),
        }
        Ok(())
    }

    fn message(&mut self, mut fields: Map<String, Value>, path: &str) {
        fields.retain(|name, _| matches!(name.as_str(), "role" | "content"));
        let from_assistant = fields.get("role").is_some_and(|role| role == "assistant");
        match self
            .open_turn()
            .filter(|turn| from_assistant && turn["content"].is_null() && turn["tool_calls"].is_null())
        {
            Some(turn) => turn["content"] = fields.remove("content").unwrap_or_default(),
            None => self.add(path, Value::Object(fields)),
        }
    }

    /// The reasoning of the assistant's turn that follows.
    fn reasoning(&mut self, fields: &Map<String, Value>) {
        let texts = |name: &str| -> String {
            let parts = fields.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        };
        let content = texts("content");
        let text = if content.is_empty() { texts("summary") } else { content };
        if !text.is_empty() {
            self.add("input", json!({"role": "assistant", "content": null, "reasoning_content": text}));
        }
    }

    fn call(&mut self, fields: &mut Map<String, Value>, path: &str) -> Result<(), ApiError> {
        let prefix = format!("{path}.");
        let read = Fields::new(fields, &prefix);
        let name = read
            .string("name")?
            .ok_or_else(|| missing(format!("{prefix}name"), "the function's name"))?
            .to_owned();
        let id = read.string("call_id")?.or(read.string("id")?).map(str::to_owned);
        let arguments = fields.remove("arguments").or_else(|| fields.remove("input")).unwrap_or_default();
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        match self.open_turn() {
            Some(turn) => match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            },
            None => self.add(path, json!({"role": "assistant", "content": null, "tool_calls": [call]})),
        }
        Ok(())
    }

    fn output(&mut self, fields: &mut Map<String, Value>, path: &str) -> Result<(), ApiError> {
        let prefix = format!("{path}.");
        let id = Fields::new(fields, &prefix).string("call_id")?.map(str::to_owned);
        let content = match fields.remove("output") {
            // Some clients send what their tool returned, not its text.
            Some(object @ Value::Object(_)) => Value::from(object.to_string()),
            Some(Value::Bool(flag)) => Value::from(flag.to_string()),
            Some(Value::Number(number)) => Value::from(number.to_string()),
            Some(other) => other,
            None => return Err(missing(format!("{prefix}output"), "what the tool returned")),
        };
        self.add(path, json!({"role": "tool", "tool_call_id": id, "content": content}));
        Ok(())
    }

    /// The assistant's turn, if the last message is one.
    fn open_turn(&mut self) -> Option<&mut Value> {
        self.list.last_mut().filter(|last| last["role"] == "assistant")
    }
}

/// The types of `text`, and `include`, of which little is offered.
pub(crate) fn check_wishes(fields: Fields) -> Result<(), ApiError> {
    if let Some(text) = fields.object("text")? {
        let text = Fields::new(text, "text.");
        text.string("verbosity")?;
        text.object("format")?;
    }
    match fields.get("include") {
        None => Ok(()),
        Some(Value::Array(wishes)) => {
            match wishes.iter().find(|wish| **wish != json!("reasoning.encrypted_content")) {
                None => Ok(()),
                Some(wish) => {
                    let message =
                        format!("`include` asks for {}, which is not supported: leave it out", brief(wish));
                    Err(Kind::Unsupported.error(message).at("include"))
                }
            }
        }
        Some(other) => Err(ApiError::value("include", other, "an array of strings")),
    }
}
