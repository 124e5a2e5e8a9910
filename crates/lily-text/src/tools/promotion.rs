//! Calls that the model made inside its reasoning.
//!
//! A model drafts calls while it thinks, and then makes them: those in the reasoning are not to be made twice. But now and
//! then it ends its turn inside the reasoning, right after the only call that it makes. So calls in the reasoning count
//! only if the model ended its turn and said nothing else, no text and no call; and of those only the last run: the last
//! call and those directly before it, with nothing but blanks between them. They have to be whole.

use serde_json::Value;

use super::{ContentDelta, ContentEnd, ToolCallParser};

/// Finds the calls of a reasoning, which arrives in parts.
#[derive(Clone, Debug)]
pub struct ReasoningCalls {
    parser: ToolCallParser,
    /// Text stands between the last call and here.
    apart: bool,
    open: Option<(String, String)>,
    run: Vec<(String, String)>,
}

impl ReasoningCalls {
    /// At the start of a reasoning, with the tools of the request.
    pub fn new(tools: &[Value]) -> Self {
        ReasoningCalls { parser: ToolCallParser::new(tools), apart: false, open: None, run: Vec::new() }
    }

    /// One more part.
    pub fn push(&mut self, part: &str) {
        let deltas = self.parser.push(part);
        self.take(deltas);
    }

    /// The end: names and arguments of the last run of whole calls.
    pub fn finish(&mut self) -> Vec<(String, String)> {
        let deltas = self.parser.finish(ContentEnd::Limit);
        self.take(deltas);
        std::mem::take(&mut self.run)
    }

    fn take(&mut self, deltas: Vec<ContentDelta>) {
        for delta in deltas {
            match delta {
                ContentDelta::Text(text) => self.apart |= !text.trim().is_empty(),
                ContentDelta::CallStart { name } => self.open = Some((name, String::new())),
                ContentDelta::Arguments(json) => {
                    if let Some((_, arguments)) = &mut self.open {
                        arguments.push_str(&json);
                    }
                }
                ContentDelta::CallEnd { complete } => {
                    if let Some(call) = self.open.take().filter(|_| complete) {
                        if std::mem::take(&mut self.apart) {
                            self.run.clear();
                        }
                        self.run.push(call);
                    }
                }
            }
        }
    }
}
