//! Anthropic's wording of a stream: blocks that begin, grow and stop, between the start and the end of a message.

use serde_json::{Value, json};

use crate::answer::{AnswerEvent, Ending, Figures};
use crate::messages::{errors, wire};
use crate::sse::{self, Wording};

/// See the module.
pub(crate) struct MessageWording {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Blocks that began.
    blocks: usize,
    open: Option<Open>,
}

/// The block that grows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

impl MessageWording {
    pub(crate) fn new(id: String, model: String, prompt_tokens: usize) -> Self {
        MessageWording { id, model, prompt_tokens, blocks: 0, open: None }
    }

    fn begin(&mut self, kind: Open, block: Value, out: &mut Vec<u8>) {
        self.stop(out);
        self.open = Some(kind);
        let event = json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        self.blocks += 1;
        emit(&event, out);
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        emit(&json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta}), out);
    }

    fn stop(&mut self, out: &mut Vec<u8>) {
        let Some(open) = self.open.take() else { return };
        if open == Open::Thinking {
            self.delta(json!({"type": "signature_delta", "signature": wire::SIGNATURE}), out);
        }
        emit(&json!({"type": "content_block_stop", "index": self.blocks - 1}), out);
    }

    fn end(&mut self, ending: &Ending, out: &mut Vec<u8>) {
        self.stop(out);
        let (reason, sequence) = wire::stop(ending);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        emit(&json!({"type": "message_delta", "delta": delta, "usage": wire::usage(&ending.figures)}), out);
    }
}

impl Wording for MessageWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        let figures = Figures { prompt_tokens: self.prompt_tokens, ..Figures::default() };
        let message = wire::message(&self.id, &self.model, Vec::new(), (None, None), wire::usage(&figures));
        emit(&json!({"type": "message_start", "message": message}), out);
        self.keep_alive(out);
    }

    fn event(&mut self, _choice: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => {}
            AnswerEvent::Reasoning(text) => {
                if self.open != Some(Open::Thinking) {
                    self.begin(
                        Open::Thinking,
                        json!({"type": "thinking", "thinking": "", "signature": ""}),
                        out,
                    );
                }
                self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
            }
            AnswerEvent::Content(text, _) if text.is_empty() => {}
            AnswerEvent::Content(text, _) => {
                if self.open != Some(Open::Text) {
                    self.begin(Open::Text, json!({"type": "text", "text": ""}), out);
                }
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            AnswerEvent::CallStart(call) => {
                let id = wire::tool_use_id(&call.id);
                let block = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
                self.begin(Open::ToolUse, block, out);
                self.delta(json!({"type": "input_json_delta", "partial_json": call.arguments}), out);
            }
            AnswerEvent::Arguments(json) => {
                self.delta(json!({"type": "input_json_delta", "partial_json": json}), out);
            }
            AnswerEvent::CallEnd => self.stop(out),
            AnswerEvent::Finished(ending) => self.end(&ending, out),
            AnswerEvent::Failed(error) => {
                emit(&errors::body(&error), out);
                return false;
            }
        }
        true
    }

    fn closing(&mut self, out: &mut Vec<u8>) {
        emit(&json!({"type": "message_stop"}), out);
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        emit(&json!({"type": "ping"}), out);
    }
}

/// `event: TYPE`, and the data.
fn emit(event: &Value, out: &mut Vec<u8>) {
    sse::named(event["type"].as_str().unwrap_or_default(), event, out);
}
