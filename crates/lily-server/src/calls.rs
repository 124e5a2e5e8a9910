//! The tool calls of one answer, taken out of its content; and out of its reasoning, if it has nothing else.

use lily_text::{ContentDelta, ContentEnd, ReasoningCalls, ToolCallParser};

use crate::ids::unique_id;

/// What a request says about calls.
#[derive(Clone, Debug)]
pub(crate) struct ToolUse {
    /// At the start of an answer, for the tools of the request.
    pub(crate) parser: ToolCallParser,
    /// The same for the reasoning.
    pub(crate) reasoning: ReasoningCalls,
    /// Several calls in one answer; otherwise the first ends it.
    pub(crate) parallel: bool,
}

/// The start of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallStart {
    /// Its place among the calls of the answer, from 0.
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// What is known of its arguments: the start of a JSON object, or all of it.
    pub(crate) arguments: String,
}

/// A piece of the content.
pub(crate) enum Said {
    Text(String),
    CallStart(CallStart),
    /// More arguments of the call that began last.
    Arguments(String),
    /// The end of the call that began last.
    CallEnd,
}

/// Splits content into text and calls; without tools, all of it is text.
pub(crate) struct CallReader {
    tools: Option<ToolUse>,
    /// Calls that began.
    begun: usize,
    /// Calls that are whole.
    whole: usize,
    /// The content has more than blanks.
    spoke: bool,
}

impl CallReader {
    pub(crate) fn new(tools: Option<ToolUse>) -> Self {
        CallReader { tools, begun: 0, whole: 0, spoke: false }
    }

    /// Whole calls given so far.
    pub(crate) fn calls(&self) -> usize {
        self.whole
    }

    /// The answer has made the one call that it may make: nothing after it is part of the answer.
    pub(crate) fn is_over(&self) -> bool {
        self.whole > 0 && self.tools.as_ref().is_some_and(|tools| !tools.parallel)
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        if let Some(tools) = &mut self.tools {
            tools.reasoning.push(text);
        }
    }

    pub(crate) fn push(&mut self, text: String) -> Vec<Said> {
        let deltas = match &mut self.tools {
            Some(tools) => tools.parser.push(&text),
            None => vec![ContentDelta::Text(text)],
        };
        self.said(deltas)
    }

    /// The end of the content, for this reason.
    pub(crate) fn finish(&mut self, end: ContentEnd) -> Vec<Said> {
        let Some(tools) = &mut self.tools else { return Vec::new() };
        let deltas = tools.parser.finish(end);
        let mut said = self.said(deltas);
        if end == ContentEnd::Turn && !self.spoke && self.begun == 0 {
            said.extend(self.promoted());
        }
        said
    }

    /// The calls of a reasoning that nothing followed.
    fn promoted(&mut self) -> Vec<Said> {
        let Some(tools) = &mut self.tools else { return Vec::new() };
        let most = if tools.parallel { usize::MAX } else { 1 };
        let calls = tools.reasoning.finish();
        let mut said = Vec::with_capacity(2 * calls.len());
        for (name, arguments) in calls.into_iter().take(most) {
            let mut start = self.start(name);
            start.arguments = arguments;
            self.whole += 1;
            said.extend([Said::CallStart(start), Said::CallEnd]);
        }
        said
    }

    fn start(&mut self, name: String) -> CallStart {
        let index = self.begun;
        self.begun += 1;
        CallStart { index, id: unique_id("call_"), name, arguments: String::new() }
    }

    fn said(&mut self, deltas: Vec<ContentDelta>) -> Vec<Said> {
        let mut said = Vec::with_capacity(deltas.len());
        for delta in deltas {
            if self.is_over() {
                break;
            }
            said.push(match delta {
                ContentDelta::Text(text) => {
                    self.spoke |= !text.trim().is_empty();
                    Said::Text(text)
                }
                ContentDelta::CallStart { name } => Said::CallStart(self.start(name)),
                ContentDelta::Arguments(json) => Said::Arguments(json),
                ContentDelta::CallEnd { complete } => {
                    self.whole += usize::from(complete);
                    Said::CallEnd
                }
            });
        }
        said
    }
}
