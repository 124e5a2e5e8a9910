//! The state machine.

use serde_json::Value;

use super::call::Call;
use super::ending::StringStart;
use super::signature::Signatures;
use super::tags::{
    FUNCTION, FUNCTION_CLOSE, Look, PARAMETER, PARAMETER_CLOSE, TOOL_CLOSE, TOOL_OPEN, TagName, begins_one,
    is_blank, look, tag_name,
};
use super::{ContentDelta, ContentEnd, give_text};

/// Takes tool calls out of the content of one answer, which arrives in parts.
///
/// What it gives does not depend on how the content was cut, apart from the cuts of texts and arguments. Text is given as soon
/// as it cannot become part of a call, a string of a call as soon as it cannot become part of a tag, and anything else of a call
/// as soon as it is complete.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    pub(super) tools: Signatures,
    pub(super) state: State,
    /// Given to nobody yet. Outside a block: blanks, and the start of what may become a tag. Inside: the block so far, and
    /// the blanks before it.
    pub(super) held: String,
    /// `held` is read up to here. Outside a block, everything before it is blank.
    pub(super) at: usize,
    /// Inside a block: where its first tag ends in `held`.
    pub(super) opened: usize,
    pub(super) call: Call,
    /// What came before `held` ended a line.
    pub(super) line_start: bool,
    /// The last thing given was a call.
    pub(super) after_call: bool,
    /// Of a string that is given as it grows.
    pub(super) string: StringStart,
}

/// Where `ToolCallParser::at` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Outside a block.
    Text,
    /// After `<tool_call>`.
    Opened,
    /// After `<function=`.
    Name,
    /// Between the parameters of a function.
    Body,
    /// After `<parameter=`.
    Key,
    /// In a value that begins at `start`.
    Value { start: usize },
    /// After a tag at `end` that closes the value if the right one follows.
    Closing { start: usize, end: usize, tag: &'static str },
    /// After `</function>`: the call was given, and `</tool_call>` may follow.
    FunctionClosed,
}

/// What follows `</parameter>` when it ends a value, and what may stand between parameters.
const IN_BODY: [&str; 5] = [PARAMETER, FUNCTION_CLOSE, TOOL_CLOSE, TOOL_OPEN, FUNCTION];

/// What may end a value.
const IN_VALUE: [&str; 4] = [PARAMETER_CLOSE, FUNCTION_CLOSE, TOOL_CLOSE, PARAMETER];

/// Bytes read at a time, up to a character. What is given is removed from the front of what is held, so this bounds the cost of a part in
/// which every few bytes turn out to be text.
const LONGEST_PIECE: usize = 4096;

impl ToolCallParser {
    /// At the start of a content. `tools` are those of the request, in OpenAI's form.
    pub fn new(tools: &[Value]) -> Self {
        ToolCallParser {
            tools: Signatures::new(tools),
            state: State::Text,
            held: String::new(),
            at: 0,
            opened: 0,
            call: Call::default(),
            line_start: true,
            after_call: false,
            string: StringStart::default(),
        }
    }

    /// What one more part brings.
    pub fn push(&mut self, part: &str) -> Vec<ContentDelta> {
        let mut out = Vec::new();
        if self.tools.is_empty() {
            give_text(&mut out, part);
            return out;
        }
        let mut rest = part;
        while !rest.is_empty() {
            let end = (LONGEST_PIECE..rest.len()).find(|&end| rest.is_char_boundary(end));
            let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.held.push_str(piece);
            while self.step(&mut out) {}
            rest = after;
        }
        out
    }

    /// The end of the content. What was held is text, unless it makes a call with what came before.
    pub fn finish(&mut self, end: ContentEnd) -> Vec<ContentDelta> {
        let mut out = Vec::new();
        if end != ContentEnd::Limit && self.close_at_end(end, &mut out) {
            self.at = self.held.len();
            self.complete(&mut out);
        } else if self.call.is_begun() {
            self.break_off(&mut out);
        }
        self.release_rest(&mut out);
        out
    }

    /// Reads on by one tag or less; false if more text is needed.
    fn step(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        match self.state {
            State::Text => self.in_text(out),
            State::Opened => self.after_tool_open(out),
            State::Name => self.in_name(out),
            State::Body => self.in_body(out),
            State::Key => self.in_key(out),
            State::Value { start } => self.in_value(start, out),
            State::Closing { start, end, tag } => self.in_closing(start, end, tag, out),
            State::FunctionClosed => self.after_function(),
        }
    }

    fn in_text(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        let mut from = self.at;
        while let Some(found) = self.held[from..].find('<') {
            let place = from + found;
            let tags: &[&str] =
                if self.begins_line(place, 0) { &[TOOL_OPEN, FUNCTION] } else { &[TOOL_OPEN] };
            match look(&self.held[place..], tags) {
                Look::Tag(tag) => {
                    self.release_text(place, out);
                    self.open(tag);
                    return true;
                }
                Look::Undecided => {
                    self.release_text(place, out);
                    return false;
                }
                Look::Other => from = place + 1,
            }
        }
        self.release_text(self.held.len(), out);
        false
    }

    fn after_tool_open(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        self.skip_blanks();
        match look(&self.held[self.at..], &[FUNCTION]) {
            Look::Tag(tag) => {
                self.at += tag.len();
                self.state = State::Name;
                true
            }
            Look::Undecided => false,
            Look::Other => self.give_back(self.opened, out),
        }
    }

    fn in_name(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        match tag_name(&self.held[self.at..]) {
            TagName::Name(name, length) => {
                self.call = Call::new(name, &self.tools);
                self.at += length;
                self.state = State::Body;
                true
            }
            TagName::Undecided => false,
            TagName::Broken => self.give_back(self.opened, out),
        }
    }

    fn in_body(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        self.skip_blanks();
        match look(&self.held[self.at..], &IN_BODY) {
            Look::Tag(PARAMETER) => {
                self.at += PARAMETER.len();
                self.state = State::Key;
            }
            Look::Tag(tag @ (FUNCTION_CLOSE | TOOL_CLOSE)) => {
                self.at += tag.len();
                self.complete(out);
                if tag == TOOL_CLOSE {
                    self.state = State::Text;
                }
            }
            // The next call begins before this one was closed.
            Look::Tag(_) => self.complete(out),
            Look::Undecided => return false,
            Look::Other => return self.give_up(out),
        }
        true
    }

    fn in_key(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        match tag_name(&self.held[self.at..]) {
            TagName::Name(key, length) => {
                self.call.begin_value(key, &self.tools, out);
                self.at += length;
                if self.call.in_string() {
                    self.string = StringStart::default();
                    self.held.drain(..self.at);
                    self.at = 0;
                }
                self.state = State::Value { start: self.at };
                true
            }
            TagName::Undecided => false,
            TagName::Broken => self.give_up(out),
        }
    }

    fn in_value(&mut self, start: usize, out: &mut Vec<ContentDelta>) -> bool {
        if self.call.in_string() && !self.begin_string() {
            return false;
        }
        while let Some(found) = self.held[self.at..].find('<') {
            let place = self.at + found;
            self.at = place;
            match look(&self.held[place..], &IN_VALUE) {
                Look::Undecided => return self.give_string_up_to(place, out),
                Look::Tag(PARAMETER) if self.begins_line(place, start) => {
                    match tag_name(&self.held[place + PARAMETER.len()..]) {
                        TagName::Undecided => return self.give_string_up_to(place, out),
                        TagName::Name(key, _) if self.call.may_follow(key, &self.tools) => {
                            self.at = self.end_value(start, place, PARAMETER, out);
                            self.state = State::Body;
                            return true;
                        }
                        TagName::Name(..) | TagName::Broken => {}
                    }
                }
                Look::Tag(tag)
                    if tag == PARAMETER || tag == TOOL_CLOSE && !self.begins_line(place, start) => {}
                Look::Tag(tag) => {
                    self.at += tag.len();
                    self.state = State::Closing { start, end: place, tag };
                    return true;
                }
                Look::Other => {}
            }
            self.at = place + 1;
        }
        self.at = self.held.len();
        self.give_string_up_to(self.at, out)
    }

    fn in_closing(
        &mut self,
        start: usize,
        end: usize,
        tag: &'static str,
        out: &mut Vec<ContentDelta>,
    ) -> bool {
        self.skip_blanks();
        let followers: &[&str] = match tag {
            PARAMETER_CLOSE => &IN_BODY,
            FUNCTION_CLOSE => &[TOOL_CLOSE],
            _ => &[TOOL_OPEN],
        };
        let follows = match look(&self.held[self.at..], followers) {
            Look::Tag(PARAMETER) => match tag_name(&self.held[self.at + PARAMETER.len()..]) {
                TagName::Name(..) => true,
                TagName::Undecided => return false,
                TagName::Broken => false,
            },
            Look::Tag(_) => true,
            Look::Undecided => return false,
            Look::Other => false,
        };
        if follows {
            let next = self.at;
            let taken = self.held.len();
            self.end_value(start, end, tag, out);
            self.at = next - (taken - self.held.len());
            self.state = State::Body;
        } else {
            self.state = State::Value { start };
        }
        true
    }

    fn after_function(&mut self) -> bool {
        self.skip_blanks();
        match look(&self.held[self.at..], &[TOOL_CLOSE, FUNCTION]) {
            Look::Tag(TOOL_CLOSE) => {
                self.held.drain(..self.at + TOOL_CLOSE.len());
                self.at = 0;
                self.state = State::Text;
                true
            }
            Look::Tag(tag) => {
                self.open(tag);
                true
            }
            Look::Undecided => false,
            Look::Other => {
                self.state = State::Text;
                true
            }
        }
    }

    /// True if `place` in `held` has only indentation before it on its line. `start` counts as the start of a line where
    /// it is that of a value.
    fn begins_line(&self, place: usize, start: usize) -> bool {
        let before = self.held[start..place].trim_end_matches([' ', '\t']);
        if !before.is_empty() {
            return before.ends_with('\n');
        }
        if self.call.in_string() { !self.string.given } else { start > 0 || self.line_start }
    }

    fn skip_blanks(&mut self) {
        let rest = &self.held[self.at..];
        self.at += rest.len() - rest.trim_start_matches(is_blank).len();
    }

    /// A block begins with the tag at `at`.
    fn open(&mut self, tag: &'static str) {
        self.at += tag.len();
        self.opened = self.at;
        self.state = if tag == TOOL_OPEN { State::Opened } else { State::Name };
    }

    /// The end: what is held is text, unless it belongs to the last call.
    fn release_rest(&mut self, out: &mut Vec<ContentDelta>) {
        let rest = &self.held[self.at..];
        let markup = match self.state {
            State::FunctionClosed => begins_one(rest, &[TOOL_CLOSE]),
            State::Text => self.after_call && self.held.chars().all(is_blank),
            _ => false,
        };
        if markup {
            self.held.clear();
        }
        self.give_back(self.held.len(), out);
    }

    /// Outside a block: everything before `end` is text, but for blanks at its end, which stay before `at`.
    fn release_text(&mut self, end: usize, out: &mut Vec<ContentDelta>) {
        let solid = self.held[self.at..end].trim_end_matches(is_blank).len();
        let text = if solid == 0 { 0 } else { self.at + solid };
        self.give(text, out);
        self.at = end - text;
    }

    /// No call: the block is text up to `end`, and what follows is looked at anew.
    pub(super) fn give_back(&mut self, end: usize, out: &mut Vec<ContentDelta>) -> bool {
        self.give(end, out);
        self.at = 0;
        self.state = State::Text;
        true
    }

    fn give(&mut self, end: usize, out: &mut Vec<ContentDelta>) {
        if end == 0 {
            return;
        }
        self.line_start = self.held[..end].ends_with('\n');
        self.after_call = false;
        give_text(out, &self.held[..end]);
        self.held.drain(..end);
    }
}
