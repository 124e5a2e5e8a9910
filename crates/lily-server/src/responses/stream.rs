//! The wording of a stream of responses: items that are added, grow and are done, each event typed and numbered.

use serde_json::{Value, json};

use crate::answer::{AnswerEvent, Ending};
use crate::collect::Part;
use crate::responses::wire::{self, Head};
use crate::sse::{self, Wording};

/// See the module.
pub(crate) struct ResponseWording {
    head: Head,
    /// The number of the next event.
    number: u64,
    /// Items that are done.
    output: Vec<Value>,
    open: Option<Open>,
}

/// The item that grows.
struct Open {
    id: String,
    part: Part,
}

impl ResponseWording {
    pub(crate) fn new(head: Head) -> Self {
        ResponseWording { head, number: 0, output: Vec::new(), open: None }
    }

    fn emit(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.number);
        self.number += 1;
        sse::named(kind, &event, out);
    }

    /// An event of the item that grows.
    fn emit_open(&mut self, kind: &str, mut event: Value, out: &mut Vec<u8>) {
        let Some(open) = &self.open else { return };
        event["item_id"] = json!(open.id);
        event["output_index"] = json!(self.output.len());
        if !matches!(open.part, Part::Call { .. }) {
            event["content_index"] = json!(0);
        }
        self.emit(kind, event, out);
    }

    fn begin(&mut self, part: Part, out: &mut Vec<u8>) {
        self.finish("completed", out);
        let id = wire::item_id(&part);
        let mut item = wire::item(&id, &part, "in_progress");
        if item.get("content").is_some() {
            item["content"] = json!([]);
        }
        let event = json!({"output_index": self.output.len(), "item": item});
        self.emit("response.output_item.added", event, out);
        let empty = match &part {
            Part::Reasoning(_) => Some(wire::reasoning_part("")),
            Part::Text(_) => Some(wire::text_part("")),
            Part::Call { .. } => None,
        };
        self.open = Some(Open { id, part });
        if let Some(part) = empty {
            self.emit_open("response.content_part.added", json!({"part": part}), out);
        }
    }

    /// Text for an item of this kind, which begins if it is not the open one.
    fn grow(&mut self, more: Part, out: &mut Vec<u8>) {
        let open = self.open.as_ref().map(|open| std::mem::discriminant(&open.part));
        let same = open == Some(std::mem::discriminant(&more));
        if !same {
            let empty = if matches!(more, Part::Text(_)) { Part::Text } else { Part::Reasoning };
            self.begin(empty(String::new()), out);
        }
        match more {
            Part::Reasoning(text) => {
                self.emit_open("response.reasoning_text.delta", json!({"delta": text}), out);
                self.append(&text);
            }
            Part::Text(text) => {
                self.emit_open("response.output_text.delta", json!({"delta": text, "logprobs": []}), out);
                self.append(&text);
            }
            Part::Call { .. } => {}
        }
    }

    fn arguments(&mut self, json: &str, out: &mut Vec<u8>) {
        self.emit_open("response.function_call_arguments.delta", json!({"delta": json}), out);
        self.append(json);
    }

    fn append(&mut self, more: &str) {
        if let Some(Open {
            part: Part::Reasoning(text) | Part::Text(text) | Part::Call { arguments: text, .. },
            ..
        }) = &mut self.open
        {
            text.push_str(more);
        }
    }

    fn finish(&mut self, status: &str, out: &mut Vec<u8>) {
        let Some(Open { id, part }) = &self.open else { return };
        let item = wire::item(id, part, status);
        match part.clone() {
            Part::Reasoning(text) => {
                self.emit_open("response.reasoning_text.done", json!({"text": text}), out);
                self.emit_open(
                    "response.content_part.done",
                    json!({"part": wire::reasoning_part(&text)}),
                    out,
                );
            }
            Part::Text(text) => {
                self.emit_open("response.output_text.done", json!({"text": text, "logprobs": []}), out);
                self.emit_open("response.content_part.done", json!({"part": wire::text_part(&text)}), out);
            }
            Part::Call { name, arguments, .. } => {
                let done = json!({"name": name, "arguments": arguments});
                self.emit_open("response.function_call_arguments.done", done, out);
            }
        }
        let event = json!({"output_index": self.output.len(), "item": item});
        self.emit("response.output_item.done", event, out);
        self.output.push(item);
        self.open = None;
    }

    fn end(&mut self, ending: &Ending, out: &mut Vec<u8>) {
        let status = wire::status(ending);
        self.finish(status, out);
        let response = self.head.ended(&self.output, ending);
        self.emit(&format!("response.{status}"), json!({"response": response}), out);
    }
}

impl Wording for ResponseWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.head.open();
            self.emit(kind, json!({"response": response}), out);
        }
    }

    fn event(&mut self, _choice: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => {}
            AnswerEvent::Reasoning(text) => self.grow(Part::Reasoning(text), out),
            AnswerEvent::Content(text, _) if text.is_empty() => {}
            AnswerEvent::Content(text, _) => self.grow(Part::Text(text), out),
            AnswerEvent::CallStart(call) => {
                self.begin(Part::Call { id: call.id, name: call.name, arguments: String::new() }, out);
                self.arguments(&call.arguments, out);
            }
            AnswerEvent::Arguments(json) => self.arguments(&json, out),
            // What broke off is told apart at the end of the answer.
            AnswerEvent::CallEnd => {}
            AnswerEvent::Finished(ending) => self.end(&ending, out),
            AnswerEvent::Failed(error) => {
                let response = self.head.failed(&self.output, &error.message);
                self.emit("response.failed", json!({"response": response}), out);
                return false;
            }
        }
        true
    }

    fn closing(&mut self, _out: &mut Vec<u8>) {}
}
