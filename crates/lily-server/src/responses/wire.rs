//! The JSON of responses and their items.

use lily_protocol::FinishReason;
use serde_json::{Map, Value, json};

use crate::answer::{Ending, Figures};
use crate::collect::Part;
use crate::ids::unique_id;
use crate::service::unix_seconds;

/// What every response object of one answer repeats.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// Fields that repeat the request.
    pub(crate) echo: Map<String, Value>,
}

impl Head {
    pub(crate) fn new(model: &str, echo: Map<String, Value>) -> Self {
        Head { id: unique_id("resp_"), created: unix_seconds(), model: model.to_owned(), echo }
    }

    /// The response before its end.
    pub(crate) fn open(&self) -> Value {
        self.response("in_progress", &[], Value::Null, Value::Null, None)
    }

    /// The response at its end.
    pub(crate) fn ended(&self, output: &[Value], ending: &Ending) -> Value {
        let details = match ending.reason {
            FinishReason::Stop => Value::Null,
            FinishReason::Length => json!({"reason": "max_output_tokens"}),
        };
        self.response(status(ending), output, details, Value::Null, Some(usage(&ending.figures)))
    }

    pub(crate) fn failed(&self, output: &[Value], message: &str) -> Value {
        let error = json!({"code": "server_error", "message": message});
        self.response("failed", output, Value::Null, error, None)
    }

    fn response(
        &self,
        status: &str,
        output: &[Value],
        incomplete: Value,
        error: Value,
        usage: Option<Value>,
    ) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": output,
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.echo.clone());
            // Absent and not null before the end, as OpenAI describes it.
            fields.extend(usage.map(|usage| ("usage".to_owned(), usage)));
        }
        response
    }
}

pub(crate) fn status(ending: &Ending) -> &'static str {
    match ending.reason {
        FinishReason::Stop => "completed",
        FinishReason::Length => "incomplete",
    }
}

fn usage(figures: &Figures) -> Value {
    json!({
        "input_tokens": figures.prompt_tokens,
        "input_tokens_details": {"cached_tokens": figures.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": figures.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": figures.reasoning_tokens},
        "total_tokens": figures.prompt_tokens + figures.completion_tokens,
    })
}

/// A part of the answer as an item, with this name.
pub(crate) fn item(id: &str, part: &Part, status: &str) -> Value {
    match part {
        Part::Reasoning(text) => json!({
            "id": id, "type": "reasoning", "status": status, "summary": [], "content": [reasoning_part(text)],
            "encrypted_content": null,
        }),
        Part::Text(text) => json!({
            "id": id, "type": "message", "status": status, "role": "assistant", "content": [text_part(text)],
        }),
        Part::Call { id: call, name, arguments } => json!({
            "id": id, "type": "function_call", "status": status, "call_id": call, "name": name, "arguments": arguments,
        }),
    }
}

pub(crate) fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

pub(crate) fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// A name for an item.
pub(crate) fn item_id(part: &Part) -> String {
    unique_id(match part {
        Part::Reasoning(_) => "rs_",
        Part::Text(_) => "msg_",
        Part::Call { .. } => "fc_",
    })
}
