//! The fields that concern tools, in the form of each family.

use std::collections::HashSet;

use lily_text::{ReasoningCalls, ToolCallParser};
use serde_json::{Map, Value, json};

use crate::calls::ToolUse;
use crate::errors::{ApiError, Kind};
use crate::read::Fields;
use crate::request::missing;

const LONGEST_NAME: usize = 256;

/// How a family writes a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`
    Chat,
    /// `{"type": "function", "name", "description", "parameters"}`
    Responses,
    /// `{"name", "description", "input_schema"}`
    Messages,
}

/// What a request offers to the model.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// To be rendered, in the form of chat completions; empty where no call may be made.
    pub(crate) offered: Vec<Value>,
    /// May be called as well, but the model is shown them where the conversation refers to them, and not in front: a tool
    /// that is found on the way would otherwise change the beginning of every later prompt.
    deferred: Vec<Value>,
    /// Which of these were shown.
    shown: HashSet<usize>,
    may_call: bool,
    parallel: bool,
}

impl Tools {
    /// Takes `tools` out of the body, and reads `tool_choice` and `parallel_tool_calls`. Types of tools that are not
    /// functions are left out and added to `unknown`.
    pub(crate) fn take(
        body: &mut Map<String, Value>,
        form: Form,
        unknown: &mut Vec<String>,
    ) -> Result<Tools, ApiError> {
        let choice = body.get("tool_choice").unwrap_or(&Value::Null);
        let (may_call, parallel) = match form {
            Form::Messages => message_choice(choice)?,
            Form::Chat | Form::Responses => (may_call(choice)?, true),
        };
        let parallel = parallel && Fields::new(body, "").boolean("parallel_tool_calls")?.unwrap_or(true);
        let mut tools = Tools { may_call, parallel, ..Tools::default() };
        match body.remove("tools") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => tools.read(list, form, unknown)?,
            Some(other) => return Err(ApiError::value("tools", &other, "an array of tools")),
        }
        if tools.offered.is_empty() {
            // Nothing is there that could find the others.
            std::mem::swap(&mut tools.offered, &mut tools.deferred);
        }
        if !may_call {
            tools.offered.clear();
            tools.deferred.clear();
        }
        Ok(tools)
    }

    /// A tool that the conversation defines on its way, in Anthropic's form; what the model is shown there.
    pub(crate) fn define(&mut self, tool: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
        let prefix = format!("{path}.");
        check_function(tool, &prefix, "input_schema")?;
        let tool = message_function(tool.clone());
        let shown = shown(&tool);
        if self.may_call {
            self.deferred.push(tool);
        }
        Ok(shown)
    }

    /// What the model is shown where the conversation refers to this tool: its definition, if it was kept back. A second time its
    /// name says as much, and a short request cannot become a prompt of any length.
    pub(crate) fn referred(&mut self, name: &str) -> String {
        match self.deferred.iter().position(|tool| tool["function"]["name"] == name) {
            Some(at) if self.shown.insert(at) => shown(&self.deferred[at]),
            _ => name.to_owned(),
        }
    }

    /// How calls are read from an answer; `None` where none may be made.
    pub(crate) fn tool_use(&self) -> Option<ToolUse> {
        let all: Vec<Value> = self.offered.iter().chain(&self.deferred).cloned().collect();
        (!all.is_empty()).then(|| ToolUse {
            parser: ToolCallParser::new(&all),
            reasoning: ReasoningCalls::new(&all),
            parallel: self.parallel,
        })
    }

    fn read(&mut self, tools: Vec<Value>, form: Form, unknown: &mut Vec<String>) -> Result<(), ApiError> {
        for (at, tool) in tools.into_iter().enumerate() {
            let later = form == Form::Messages && tool["defer_loading"] == true;
            if let Some(function) = function(tool, &format!("tools[{at}]"), form, unknown)? {
                if later { self.deferred.push(function) } else { self.offered.push(function) }
            }
        }
        Ok(())
    }
}

/// A definition as the checkpoint's template writes it.
fn shown(tool: &Value) -> String {
    format!("<tools>\n{tool}\n</tools>")
}

/// Anthropic's form: whether the model may call, and more than once.
fn message_choice(choice: &Value) -> Result<(bool, bool), ApiError> {
    const WANTED: &str = "an object with type \"auto\" or \"none\"";
    let fields = match choice {
        Value::Null => return Ok((true, true)),
        Value::Object(fields) => Fields::new(fields, "tool_choice."),
        other => return Err(ApiError::value("tool_choice", other, WANTED)),
    };
    let parallel = !fields.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    match fields.string("type")? {
        Some("auto") => Ok((true, parallel)),
        Some("none") => Ok((false, parallel)),
        Some("any") => Err(unsupported_choice("a call of any tool")),
        Some("tool") => Err(unsupported_choice("a named tool")),
        _ => Err(ApiError::value("tool_choice", choice, WANTED)),
    }
}

/// Whether the model may call. Whether it must is not something that can be promised without a grammar.
fn may_call(choice: &Value) -> Result<bool, ApiError> {
    const FIELD: &str = "tool_choice";
    match choice {
        Value::Null => Ok(true),
        Value::String(choice) if choice == "auto" => Ok(true),
        Value::String(choice) if choice == "none" => Ok(false),
        Value::String(choice) if choice == "required" => Err(unsupported_choice("\"required\"")),
        Value::Object(fields) => match fields.get("type").and_then(Value::as_str) {
            Some("function" | "custom") => Err(unsupported_choice("a named tool")),
            Some("allowed_tools") => Err(unsupported_choice("\"allowed_tools\"")),
            _ => Err(ApiError::value(FIELD, choice, "\"auto\" or \"none\"")),
        },
        other => Err(ApiError::value(FIELD, other, "\"auto\" or \"none\"")),
    }
}

fn unsupported_choice(what: &str) -> ApiError {
    let message = format!(
        "`tool_choice` asks for {what}, which is not supported here: leave it out, or ask for auto or none"
    );
    Kind::Unsupported.error(message).at("tool_choice")
}

/// A tool in the form of chat completions; `None` for a type that is left out.
fn function(
    tool: Value,
    path: &str,
    form: Form,
    unknown: &mut Vec<String>,
) -> Result<Option<Value>, ApiError> {
    let Value::Object(mut fields) = tool else {
        return Err(ApiError::value(path, &tool, "an object"));
    };
    let prefix = format!("{path}.");
    let own_type = match form {
        Form::Chat | Form::Responses => "function",
        Form::Messages => "custom",
    };
    match Fields::new(&fields, &prefix).string("type")? {
        Some(kind) if kind == own_type => {}
        Some(other) => {
            unknown.push(format!("tools[].type={other}"));
            return Ok(None);
        }
        None if form == Form::Messages => {}
        None => return Err(missing(format!("{path}.type"), "\"function\"")),
    }
    Ok(Some(match form {
        Form::Chat => {
            let path = format!("{prefix}function");
            let Some(function) = Fields::new(&fields, &prefix).object("function")? else {
                return Err(missing(path, "an object with a `name`"));
            };
            check_function(function, &format!("{path}."), "parameters")?;
            Value::Object(fields)
        }
        Form::Responses => {
            check_function(&fields, &prefix, "parameters")?;
            fields.remove("type");
            json!({"type": "function", "function": fields})
        }
        Form::Messages => {
            check_function(&fields, &prefix, "input_schema")?;
            message_function(fields)
        }
    }))
}

/// From Anthropic's form. What is not for the model (`cache_control` and the like) is left behind.
fn message_function(mut fields: Map<String, Value>) -> Value {
    let mut function = Map::new();
    for (from, to) in [("name", "name"), ("description", "description"), ("input_schema", "parameters")] {
        if let Some(value) = fields.remove(from) {
            function.insert(to.to_owned(), value);
        }
    }
    json!({"type": "function", "function": function})
}

fn check_function(function: &Map<String, Value>, prefix: &str, schema: &str) -> Result<(), ApiError> {
    let fields = Fields::new(function, prefix);
    fields.string("description")?;
    fields.object(schema)?;
    fields.boolean("strict")?;
    match fields.string("name")? {
        None => Err(missing(format!("{prefix}name"), "the function's name")),
        Some(name) if is_name(name) => Ok(()),
        Some(name) => {
            let wanted = format!(
                "1 to {LONGEST_NAME} bytes without `<`, `>` and control characters, and without blanks at its ends"
            );
            Err(ApiError::value(&format!("{prefix}name"), &Value::from(name), &wanted))
        }
    }
}

/// A name that the model can write between `<function=` and `>`.
fn is_name(name: &str) -> bool {
    let foreign = |character: char| matches!(character, '<' | '>') || character.is_control();
    (1..=LONGEST_NAME).contains(&name.len()) && name.trim() == name && !name.contains(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<(Tools, Vec<String>), ApiError> {
        let mut body = body.as_object().cloned().expect("an object");
        let mut unknown = Vec::new();
        Tools::take(&mut body, Form::Chat, &mut unknown).map(|tools| (tools, unknown))
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    #[test]
    fn functions_are_offered_as_they_came() {
        let full = json!({"type": "function", "function": {
            "name": "mcp__files.read", "description": "d", "parameters": {"type": "object"}, "strict": true, "more": 1,
        }});
        for more in [json!({}), json!({"tool_choice": null}), json!({"tool_choice": "auto"})] {
            let mut body = json!({"tools": [full, function("f")]});
            body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
            let (tools, unknown) = take(body).expect("valid tools");
            assert_eq!(tools.offered, [full.clone(), function("f")]);
            assert!(tools.parallel && unknown.is_empty());
        }
        for body in [json!({}), json!({"tools": null}), json!({"tools": []})] {
            assert!(take(body).expect("no tools").0.offered.is_empty());
        }
        let none = json!({"tools": [full], "tool_choice": "none", "parallel_tool_calls": false});
        let (tools, _) = take(none).expect("valid tools");
        assert!(tools.offered.is_empty() && !tools.parallel);
    }

    #[test]
    fn other_types_of_tools_are_left_out() {
        let body = json!({"tools": [{"type": "web_search"}, function("f"), {"type": "custom", "custom": {"name": "c"}}]});
        let (tools, unknown) = take(body).expect("valid tools");
        assert_eq!(tools.offered, [function("f")]);
        assert_eq!(unknown, ["tools[].type=web_search", "tools[].type=custom"]);
    }

    #[test]
    fn faults_are_named_by_their_path() {
        let named =
            |name: Value| json!({"tools": [function("f"), {"type": "function", "function": {"name": name}}]});
        let with = |more: Value| {
            let mut tool = function("f");
            tool["function"]
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().cloned().expect("an object"));
            json!({"tools": [tool]})
        };
        let long = "x".repeat(257);
        for (body, kind, param) in [
            (json!({"tools": {}}), Kind::InvalidValue, "tools"),
            (json!({"tools": [1]}), Kind::InvalidValue, "tools[0]"),
            (json!({"tools": [{}]}), Kind::MissingField, "tools[0].type"),
            (json!({"tools": [{"type": 1}]}), Kind::InvalidValue, "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), Kind::MissingField, "tools[0].function"),
            (
                json!({"tools": [{"type": "function", "function": []}]}),
                Kind::InvalidValue,
                "tools[0].function",
            ),
            (
                json!({"tools": [{"type": "function", "function": {}}]}),
                Kind::MissingField,
                "tools[0].function.name",
            ),
            (named(json!(5)), Kind::InvalidValue, "tools[1].function.name"),
            (named(json!("")), Kind::InvalidValue, "tools[1].function.name"),
            (named(json!(" f")), Kind::InvalidValue, "tools[1].function.name"),
            (named(json!("a>b")), Kind::InvalidValue, "tools[1].function.name"),
            (named(json!("a\nb")), Kind::InvalidValue, "tools[1].function.name"),
            (named(json!(long)), Kind::InvalidValue, "tools[1].function.name"),
            (with(json!({"description": 1})), Kind::InvalidValue, "tools[0].function.description"),
            (with(json!({"parameters": "{}"})), Kind::InvalidValue, "tools[0].function.parameters"),
            (with(json!({"strict": "yes"})), Kind::InvalidValue, "tools[0].function.strict"),
            (json!({"parallel_tool_calls": 1}), Kind::InvalidValue, "parallel_tool_calls"),
            (json!({"tool_choice": 1}), Kind::InvalidValue, "tool_choice"),
            (json!({"tool_choice": "always"}), Kind::InvalidValue, "tool_choice"),
            (json!({"tool_choice": {}}), Kind::InvalidValue, "tool_choice"),
            (json!({"tool_choice": "required"}), Kind::Unsupported, "tool_choice"),
            (json!({"tool_choice": function("f")}), Kind::Unsupported, "tool_choice"),
            (json!({"tool_choice": {"type": "allowed_tools"}}), Kind::Unsupported, "tool_choice"),
        ] {
            let error = take(body.clone()).expect_err("a fault");
            assert_eq!((error.kind, error.param.as_deref()), (kind, Some(param)), "{body}");
        }
    }
}
