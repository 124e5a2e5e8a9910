//! The tool calls of one answer, taken out of its content.

use lily_protocol::FinishReason;
use lily_text::{ContentDelta, ToolCallParser};

use crate::ids::unique_id;

/// What a request says about calls.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    /// At the start of an answer, for the tools of the request.
    pub(crate) parser: ToolCallParser,
    /// Several calls in one answer; otherwise the first ends it.
    pub(crate) parallel: bool,
}

/// One call, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    /// Its place among the calls of the answer, from 0.
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// The text of a JSON object.
    pub(crate) arguments: String,
}

/// A piece of the content.
pub(crate) enum Said {
    Text(String),
    Call(ToolCall),
}

/// Splits content into text and calls; without tools, all of it is text.
pub(crate) struct CallReader {
    tools: Option<ToolUse>,
    calls: usize,
}

impl CallReader {
    pub(crate) fn new(tools: Option<ToolUse>) -> Self {
        CallReader { tools, calls: 0 }
    }

    /// Calls given so far.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// The answer has made the one call that it may make: nothing after it is part of the answer.
    pub(crate) fn is_over(&self) -> bool {
        self.calls > 0 && self.tools.as_ref().is_some_and(|tools| !tools.parallel)
    }

    pub(crate) fn push(&mut self, text: String) -> Vec<Said> {
        let deltas = match &mut self.tools {
            Some(tools) => tools.parser.push(&text),
            None => vec![ContentDelta::Text(text)],
        };
        self.said(deltas)
    }

    /// The end of the content, for this reason. A limit may have cut off the last call, which is then no call.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Vec<Said> {
        let Some(tools) = &mut self.tools else { return Vec::new() };
        let deltas = match reason {
            FinishReason::Stop => tools.parser.finish(),
            FinishReason::Length => tools.parser.cut_off(),
        };
        self.said(deltas)
    }

    fn said(&mut self, deltas: Vec<ContentDelta>) -> Vec<Said> {
        let mut said = Vec::with_capacity(deltas.len());
        for delta in deltas {
            if self.is_over() {
                break;
            }
            said.push(match delta {
                ContentDelta::Text(text) => Said::Text(text),
                ContentDelta::ToolCall { name, arguments } => {
                    let index = self.calls;
                    self.calls += 1;
                    Said::Call(ToolCall { index, id: unique_id("call_"), name, arguments })
                }
            });
        }
        said
    }
}
