//! What blocks of content say as text.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind, brief};
use crate::messages::conversation::join;
use crate::read::Fields;
use crate::request::missing;
use crate::request::tools::Tools;

/// What blocks may refer to, and what becomes of those that say nothing.
pub(crate) struct Blocks<'a> {
    pub(crate) tools: &'a mut Tools,
    /// Types that were left out.
    pub(crate) left_out: &'a mut Vec<String>,
}

impl Blocks<'_> {
    /// The text of a block, empty for one that says nothing to this model.
    pub(crate) fn text<'v>(&mut self, block: &'v Value, path: &str) -> Result<Cow<'v, str>, ApiError> {
        let fields = match block {
            Value::String(text) => return Ok(text.into()),
            Value::Null => return Ok("".into()),
            Value::Object(fields) => fields,
            other => return Err(ApiError::value(path, other, "a block of type \"text\"")),
        };
        let prefix = format!("{path}.");
        let read = Fields::new(fields, &prefix);
        let Some(kind) = read.string("type")? else {
            return Err(missing(format!("{prefix}type"), "\"text\""));
        };
        match kind {
            // A compaction is what an earlier part of the conversation was shortened to.
            "text" | "compaction" => {
                let name = if kind == "text" { "text" } else { "content" };
                read.string(name)?;
                Ok(fields.get(name).and_then(Value::as_str).unwrap_or_default().into())
            }
            "document" => self.document(read, path).map(Cow::from),
            "search_result" => self.search_result(read, path).map(Cow::from),
            "tool_reference" => Ok(self.tools.referred(tool_name(read, &prefix)?).into()),
            "tool_addition" | "tool_removal" => self.tool_change(kind, read, path).map(Cow::from),
            kind if is_left_behind(kind) => {
                self.left_out.push(format!("messages[].content[].type={kind}"));
                Ok("".into())
            }
            other => Err(unreadable(path, &format!("content of type {}", brief(&Value::from(other))))),
        }
    }

    /// Text that stands in a document; files of other kinds are not read here.
    fn document(&mut self, document: Fields, path: &str) -> Result<String, ApiError> {
        let path = format!("{path}.source");
        let Some(source) = document.object("source")? else {
            return Err(missing(path, "an object with the document's text"));
        };
        let prefix = format!("{path}.");
        let source = Fields::new(source, &prefix);
        let mut text = String::new();
        for name in ["title", "context"] {
            join(&mut text, document.string(name)?.unwrap_or_default());
        }
        match source.string("type")? {
            Some("text") => join(&mut text, source.string("data")?.unwrap_or_default()),
            Some("content") => self.add(&mut text, source.get("content"), &format!("{prefix}content"))?,
            other => {
                let kind = brief(&Value::from(other));
                return Err(unreadable(&path, &format!("a document of type {kind}")));
            }
        }
        Ok(text)
    }

    fn search_result(&mut self, result: Fields, path: &str) -> Result<String, ApiError> {
        let mut text = String::new();
        for name in ["title", "source"] {
            join(&mut text, result.string(name)?.unwrap_or_default());
        }
        self.add(&mut text, result.get("content"), &format!("{path}.content"))?;
        Ok(text)
    }

    /// A system turn that gives the model a tool or takes it away.
    fn tool_change(&mut self, kind: &str, change: Fields, path: &str) -> Result<String, ApiError> {
        let path = format!("{path}.tool");
        let Some(tool) = change.object("tool")? else {
            return Err(missing(path, "a tool_definition or a tool_reference"));
        };
        let prefix = format!("{path}.");
        let read = Fields::new(tool, &prefix);
        if let Some(definition) = read.object("definition")? {
            return self.tools.define(definition, &format!("{prefix}definition"));
        }
        let name = tool_name(read, &prefix)?;
        Ok(match kind {
            "tool_removal" => format!("The tool {name} cannot be called any more."),
            _ => self.tools.referred(name),
        })
    }

    fn add(&mut self, text: &mut String, content: Option<&Value>, path: &str) -> Result<(), ApiError> {
        match content {
            Some(Value::Array(blocks)) => {
                for (at, block) in blocks.iter().enumerate() {
                    join(text, &self.text(block, &format!("{path}[{at}]"))?);
                }
            }
            Some(block) => join(text, &self.text(block, path)?),
            None => {}
        }
        Ok(())
    }
}

fn tool_name<'v>(read: Fields<'v>, prefix: &str) -> Result<&'v str, ApiError> {
    match read.string("tool_name")?.or(read.string("name")?) {
        Some(name) => Ok(name),
        None => Err(missing(format!("{prefix}tool_name"), "the tool's name")),
    }
}

/// What tools of another server left in a conversation: nothing that the model could have asked for here.
fn is_left_behind(kind: &str) -> bool {
    let call = kind.ends_with("_tool_use") || kind.ends_with("_tool_result");
    call || matches!(kind, "container_upload" | "fallback" | "mcp_tool_listing" | "connector_text")
}

fn unreadable(path: &str, what: &str) -> ApiError {
    let message = format!("{path}: {what} is not supported: this model reads text only");
    Kind::InvalidMessages.error(message).at(path)
}

/// Whether a request wants the reasoning of all earlier turns to stay, as Anthropic words it.
pub(crate) fn keeps_thinking(body: &Map<String, Value>) -> Option<bool> {
    let edits = body.get("context_management")?.get("edits")?.as_array()?;
    let all = |edit: &&Value| {
        edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking")) && edit["keep"] == "all"
    };
    edits.iter().find(all).map(|_| true)
}
