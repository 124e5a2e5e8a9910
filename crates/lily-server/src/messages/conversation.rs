//! Anthropic's messages, turned into those that everything else here speaks.

use lily_text::{Message, Role, ToolCall};
use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind};
use crate::messages::blocks::Blocks;
use crate::read::Fields;
use crate::request::missing;

/// Claude Code puts a block with this in front of its system prompt. It differs with every request and says nothing to the model,
/// but would make every prompt a new one.
const BILLING: &str = "x-anthropic-billing-header:";

/// `system`.
pub(crate) fn system(value: &Value, blocks: &mut Blocks) -> Result<Option<Message>, ApiError> {
    let mut texts = Vec::new();
    match value {
        Value::Null => {}
        Value::String(text) => texts.push(text.into()),
        Value::Array(list) => {
            for (at, block) in list.iter().enumerate() {
                texts.push(blocks.text(block, &format!("system[{at}]"))?);
            }
        }
        other => return Err(ApiError::value("system", other, "a string or an array of text blocks")),
    }
    if texts.first().is_some_and(|text| text.starts_with(BILLING)) {
        texts.remove(0);
    }
    texts.retain(|text| !text.is_empty());
    Ok((!texts.is_empty()).then(|| Message::system(texts.join("\n"))))
}

/// `messages`.
pub(crate) fn messages(value: &Value, blocks: &mut Blocks) -> Result<Vec<Message>, ApiError> {
    let list = match value {
        Value::Null => return Err(missing("messages", "an array of messages")),
        Value::Array(list) => list,
        other => return Err(ApiError::value("messages", other, "an array of messages")),
    };
    let mut messages = Vec::with_capacity(list.len());
    for (at, message) in list.iter().enumerate() {
        let path = format!("messages[{at}]");
        let Value::Object(fields) = message else {
            return Err(ApiError::value(&path, message, "an object"));
        };
        let role = role(fields, &path)?;
        let content = fields.get("content").unwrap_or(&Value::Null);
        Turn { message: Message::new(role, ""), any: false, out: &mut messages, blocks }
            .read(content, &format!("{path}.content"))?;
    }
    Ok(messages)
}

fn role(fields: &Map<String, Value>, path: &str) -> Result<Role, ApiError> {
    let prefix = format!("{path}.");
    match Fields::new(fields, &prefix).string("role")? {
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("system") => Ok(Role::System),
        Some("developer") => Ok(Role::Developer),
        Some(other) => {
            let found = Value::from(other);
            let wanted = "\"user\", \"assistant\" or \"system\"";
            Err(ApiError {
                kind: Kind::InvalidMessages,
                ..ApiError::value(&format!("{prefix}role"), &found, wanted)
            })
        }
        None => Err(missing(format!("{prefix}role"), "\"user\" or \"assistant\"")),
    }
}

/// One message, which may become several: each tool result is a turn of its own.
struct Turn<'a, 'b> {
    message: Message,
    /// Something was added to `message`.
    any: bool,
    out: &'a mut Vec<Message>,
    blocks: &'a mut Blocks<'b>,
}

impl Turn<'_, '_> {
    fn read(mut self, content: &Value, path: &str) -> Result<(), ApiError> {
        match content {
            Value::Null => {}
            Value::String(text) => self.message.content.push_str(text),
            Value::Array(blocks) => {
                for (at, block) in blocks.iter().enumerate() {
                    self.block(block, &format!("{path}[{at}]"))?;
                }
                if !self.any && blocks.iter().any(|block| block["type"] == "tool_result") {
                    return Ok(());
                }
            }
            other => return Err(ApiError::value(path, other, "a string or an array of blocks")),
        }
        self.out.push(self.message);
        Ok(())
    }

    fn block(&mut self, block: &Value, path: &str) -> Result<(), ApiError> {
        let Value::Object(fields) = block else {
            return self.text(block, path);
        };
        let prefix = format!("{path}.");
        let read = Fields::new(fields, &prefix);
        match read.string("type")? {
            Some("tool_result") => self.tool_result(read, path)?,
            Some("tool_use") => {
                let name = read
                    .string("name")?
                    .ok_or_else(|| missing(format!("{prefix}name"), "the tool's name"))?;
                let arguments = match read.get("input") {
                    Some(input @ Value::Object(_)) => input.clone(),
                    None => Value::Object(Map::new()),
                    Some(other) => Value::Object(Map::from_iter([("input".to_owned(), other.clone())])),
                };
                let id = read.string("id")?.map(str::to_owned);
                self.message.tool_calls.push(ToolCall { id, name: name.to_owned(), arguments });
                self.any = true;
            }
            Some("thinking") => {
                let text = read.string("thinking")?.unwrap_or_default();
                self.message.reasoning.get_or_insert_default().push_str(text);
                self.any = true;
            }
            // Encrypted by another server: nothing that a model could read.
            Some("redacted_thinking") => {}
            _ => self.text(block, path)?,
        }
        Ok(())
    }

    fn text(&mut self, block: &Value, path: &str) -> Result<(), ApiError> {
        join(&mut self.message.content, &self.blocks.text(block, path)?);
        self.any = true;
        Ok(())
    }

    fn tool_result(&mut self, fields: Fields, path: &str) -> Result<(), ApiError> {
        let mut result = Message::new(Role::Tool, "");
        result.tool_call_id = fields.string("tool_use_id")?.map(str::to_owned);
        match fields.get("content") {
            None => {}
            Some(Value::String(text)) => result.content.push_str(text),
            Some(Value::Array(blocks)) => {
                for (at, block) in blocks.iter().enumerate() {
                    join(&mut result.content, &self.blocks.text(block, &format!("{path}.content[{at}]"))?);
                }
            }
            Some(other) => {
                return Err(ApiError::value(
                    &format!("{path}.content"),
                    other,
                    "a string or an array of blocks",
                ));
            }
        }
        if std::mem::take(&mut self.any) {
            let role = self.message.role;
            self.out.push(std::mem::replace(&mut self.message, Message::new(role, "")));
        }
        self.out.push(result);
        Ok(())
    }
}

/// Blocks stand on lines of their own.
pub(super) fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(more);
}
