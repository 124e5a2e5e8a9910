//! The ends of values and calls, and strings that are given as they grow.

use super::parser::{State, ToolCallParser};
use super::tags::{FUNCTION_CLOSE, PARAMETER_CLOSE, TOOL_CLOSE, begins_one, is_blank};
use super::{ContentDelta, ContentEnd};

/// What is known of a string that is given as it grows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StringStart {
    /// The line break after its tag, which is not part of it, was looked for.
    begun: bool,
    /// That line break is `\r\n`, and so is the one before its end.
    windows: bool,
    /// Some of it was given.
    pub(super) given: bool,
}

impl ToolCallParser {
    /// Takes the line break after the tag of a string that is given as it grows; false if more text is needed.
    pub(super) fn begin_string(&mut self) -> bool {
        if !self.string.begun {
            if self.held.is_empty() || self.held == "\r" {
                return false;
            }
            self.string.windows = self.held.starts_with("\r\n");
            let taken = if self.string.windows { 2 } else { usize::from(self.held.starts_with('\n')) };
            self.held.drain(..taken);
            self.string.begun = true;
        }
        true
    }

    /// Gives what is decided of a string that is given as it grows: blanks at its end may belong to a tag. Always false, for
    /// more text is needed.
    pub(super) fn give_string_up_to(&mut self, end: usize, out: &mut Vec<ContentDelta>) -> bool {
        if self.call.in_string() {
            let solid = self.held[..end].trim_end_matches(is_blank).len();
            if solid > 0 {
                self.call.give_string(&self.held[..solid], out);
                self.string.given = true;
                self.held.drain(..solid);
                self.at -= solid;
            }
        }
        false
    }

    /// The value in progress is `held[start..end]`, ended by `tag`. A string that is given as it grows is taken out of `held`
    /// with this. Returns where `end` is then.
    pub(super) fn end_value(
        &mut self,
        start: usize,
        end: usize,
        tag: &str,
        out: &mut Vec<ContentDelta>,
    ) -> usize {
        let mut value = &self.held[start..end];
        if tag != PARAMETER_CLOSE {
            // The tag stands on a line of its own, perhaps indented.
            let line = value.trim_end_matches([' ', '\t']);
            value = if line.ends_with('\n') { line } else { value };
        }
        let grown = self.call.in_string();
        let windows = if grown { self.string.windows } else { value.starts_with("\r\n") };
        let line_break = if windows { "\r\n" } else { "\n" };
        if !grown {
            value = value.strip_prefix(line_break).unwrap_or(value);
        }
        value = value.strip_suffix(line_break).unwrap_or(value);
        self.call.end_value(value, &self.tools, out);
        if !grown {
            return end;
        }
        self.held.drain(..end);
        0
    }

    /// The block up to `at` is a whole call, or the whole block of an unknown tool.
    pub(super) fn complete(&mut self, out: &mut Vec<ContentDelta>) {
        if !self.call.is_known() {
            self.give_back(self.at, out);
            return;
        }
        self.call.complete(&self.tools, out);
        self.call_ended();
    }

    /// What is here is no tag of a call: the block is text up to here. A call that was begun ends instead; no text leads here
    /// then, since a value ends only where a whole tag follows.
    pub(super) fn give_up(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        if self.call.is_begun() {
            self.call.break_off(out);
            self.call_ended();
            return true;
        }
        self.give_back(self.at, out)
    }

    /// The answer ends inside a call that was begun: what is surely part of its string is given.
    pub(super) fn break_off(&mut self, out: &mut Vec<ContentDelta>) {
        let end = match self.state {
            State::Value { .. } => self.at,
            State::Closing { end, .. } => end,
            _ => 0,
        };
        self.give_string_up_to(end, out);
        self.call.break_off(out);
        self.at = self.held.len();
        self.call_ended();
    }

    pub(super) fn call_ended(&mut self) {
        self.held.drain(..self.at);
        self.at = 0;
        self.state = State::FunctionClosed;
        self.line_start = true;
        self.after_call = true;
    }

    /// Whether the end of the text completes a call; ends its last value.
    pub(super) fn close_at_end(&mut self, why: ContentEnd, out: &mut Vec<ContentDelta>) -> bool {
        let rest = &self.held[self.at..];
        // The model said that it is done.
        let ended = why == ContentEnd::Turn && self.call.is_begun();
        match self.state {
            State::Body => ended || begins_one(rest, &[FUNCTION_CLOSE, TOOL_CLOSE]),
            State::Value { start } if ended => {
                // What is half a tag is left out.
                self.end_value(start, self.at.max(start), TOOL_CLOSE, out);
                true
            }
            State::Closing { start, end, tag } => {
                let closed = ended
                    || match tag {
                        PARAMETER_CLOSE => begins_one(rest, &[FUNCTION_CLOSE, TOOL_CLOSE]),
                        FUNCTION_CLOSE => begins_one(rest, &[TOOL_CLOSE]),
                        _ => rest.is_empty(),
                    };
                if closed {
                    self.end_value(start, end, tag, out);
                }
                closed
            }
            _ => false,
        }
    }
}
