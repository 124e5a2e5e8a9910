//! The state machine.

use serde_json::Value;

use super::argument::{argument, quoted};
use super::signature::{Signature, Signatures};
use super::tags::{
    FUNCTION, FUNCTION_CLOSE, Look, PARAMETER, PARAMETER_CLOSE, TOOL_CLOSE, TOOL_OPEN, TagName, begins_one,
    is_blank, look, tag_name,
};

/// A piece of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentDelta {
    /// Text to be appended to what is there. Never empty.
    Text(String),
    /// A whole call.
    ToolCall {
        /// The name of one of the tools.
        name: String,
        /// The text of a JSON object.
        arguments: String,
    },
}

/// Takes tool calls out of the content of one answer, which arrives in parts.
///
/// What it gives does not depend on how the content was cut, apart from the cuts of the text. Text is given as soon as it
/// cannot become part of a call, and a call as soon as it is complete.
#[derive(Clone, Debug)]
pub struct ToolCallParser {
    tools: Signatures,
    state: State,
    /// Given to nobody yet. Outside a block: blanks, and the start of what may become a tag. Inside: the block so far, and
    /// the blanks before it.
    held: String,
    /// `held` is read up to here. Outside a block, everything before it is blank.
    at: usize,
    /// Inside a block: where its first tag ends in `held`.
    opened: usize,
    call: Call,
    /// What came before `held` ended a line.
    line_start: bool,
    /// The last thing given was a call.
    after_call: bool,
}

/// Where `ToolCallParser::at` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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

/// The function of a block, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Call {
    name: String,
    /// `None`: no such tool, and the block is text.
    tool: Option<usize>,
    /// Keys and the text of their values.
    values: Vec<(String, String)>,
}

/// What follows `</parameter>` when it ends a value, and what may stand between parameters.
const IN_BODY: [&str; 5] = [PARAMETER, FUNCTION_CLOSE, TOOL_CLOSE, TOOL_OPEN, FUNCTION];

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

    /// The end of an answer that the model ended. A block that lacks nothing but closing tags is a call; the rest of what
    /// was held is text.
    pub fn finish(&mut self) -> Vec<ContentDelta> {
        let mut out = Vec::new();
        if self.close_at_end() {
            self.at = self.held.len();
            self.complete(&mut out);
        }
        self.release_rest(&mut out);
        out
    }

    /// The end of an answer that the model did not end. More parameters might have come, so a block that is not closed is
    /// text.
    pub fn cut_off(&mut self) -> Vec<ContentDelta> {
        let mut out = Vec::new();
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
            State::Value { start } => self.in_value(start),
            State::Closing { start, end, tag } => self.in_closing(start, end, tag),
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
                let tool = self.tools.find(name);
                self.call = Call { name: name.to_owned(), tool, values: Vec::new() };
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
            Look::Other => return self.give_back(self.at, out),
        }
        true
    }

    fn in_key(&mut self, out: &mut Vec<ContentDelta>) -> bool {
        match tag_name(&self.held[self.at..]) {
            TagName::Name(key, length) => {
                self.call.values.push((key.to_owned(), String::new()));
                self.at += length;
                self.state = State::Value { start: self.at };
                true
            }
            TagName::Undecided => false,
            TagName::Broken => self.give_back(self.at, out),
        }
    }

    fn in_value(&mut self, start: usize) -> bool {
        while let Some(found) = self.held[self.at..].find('<') {
            let place = self.at + found;
            self.at = place;
            let tags = [PARAMETER_CLOSE, FUNCTION_CLOSE, TOOL_CLOSE, PARAMETER];
            match look(&self.held[place..], &tags) {
                Look::Undecided => return false,
                Look::Tag(PARAMETER) if self.begins_line(place, start) => {
                    match tag_name(&self.held[place + PARAMETER.len()..]) {
                        TagName::Undecided => return false,
                        TagName::Name(key, _) if self.may_follow(key) => {
                            self.end_value(start, place, PARAMETER);
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
        false
    }

    fn in_closing(&mut self, start: usize, end: usize, tag: &'static str) -> bool {
        self.skip_blanks();
        let followers: &[&str] = match tag {
            PARAMETER_CLOSE => &IN_BODY,
            FUNCTION_CLOSE => &[TOOL_CLOSE],
            _ => &[TOOL_OPEN],
        };
        match look(&self.held[self.at..], followers) {
            Look::Tag(_) => {
                self.end_value(start, end, tag);
                self.state = State::Body;
                true
            }
            Look::Undecided => false,
            Look::Other => {
                self.state = State::Value { start };
                true
            }
        }
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
        if before.is_empty() { start > 0 || self.line_start } else { before.ends_with('\n') }
    }

    /// Whether a parameter may follow one that was not closed.
    fn may_follow(&self, key: &str) -> bool {
        let declared = self.signature().and_then(|signature| signature.declares(key)).unwrap_or(true);
        declared && self.call.values.iter().all(|(given, _)| given != key)
    }

    fn signature(&self) -> Option<&Signature> {
        self.call.tool.and_then(|place| self.tools.at(place))
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

    /// The value of the last key is `held[start..end]`, ended by `tag`.
    fn end_value(&mut self, start: usize, end: usize, tag: &'static str) {
        let mut value = &self.held[start..end];
        if tag != PARAMETER_CLOSE {
            // The tag stands on a line of its own, perhaps indented.
            let line = value.trim_end_matches([' ', '\t']);
            value = if line.ends_with('\n') { line } else { value };
        }
        let line_break = if value.starts_with("\r\n") { "\r\n" } else { "\n" };
        value = value.strip_prefix(line_break).unwrap_or(value);
        value = value.strip_suffix(line_break).unwrap_or(value);
        if let Some((_, last)) = self.call.values.last_mut() {
            last.push_str(value);
        }
    }

    /// The block up to `at` is a whole call, or the whole block of an unknown tool.
    fn complete(&mut self, out: &mut Vec<ContentDelta>) {
        if self.call.tool.is_none() {
            self.give_back(self.at, out);
            return;
        }
        let arguments = self.arguments();
        let call = std::mem::take(&mut self.call);
        out.push(ContentDelta::ToolCall { name: call.name, arguments });
        self.held.drain(..self.at);
        self.at = 0;
        self.state = State::FunctionClosed;
        self.line_start = true;
        self.after_call = true;
    }

    /// The text of a JSON object.
    fn arguments(&self) -> String {
        let mut members: Vec<(&str, String)> = Vec::with_capacity(self.call.values.len());
        for (key, text) in &self.call.values {
            let value = argument(text, self.signature().and_then(|signature| signature.kinds(key)));
            match members.iter_mut().find(|(given, _)| given == key) {
                Some((_, earlier)) => *earlier = value,
                None => members.push((key, value)),
            }
        }
        let members: Vec<String> =
            members.iter().map(|(key, value)| format!("{}:{value}", quoted(key))).collect();
        format!("{{{}}}", members.join(","))
    }

    /// Whether the end of the text completes a call; ends its last value.
    fn close_at_end(&mut self) -> bool {
        let rest = &self.held[self.at..];
        match self.state {
            State::Body => begins_one(rest, &[FUNCTION_CLOSE, TOOL_CLOSE]),
            State::Closing { start, end, tag } => {
                let closed = match tag {
                    PARAMETER_CLOSE => begins_one(rest, &[FUNCTION_CLOSE, TOOL_CLOSE]),
                    FUNCTION_CLOSE => begins_one(rest, &[TOOL_CLOSE]),
                    _ => rest.is_empty(),
                };
                if closed {
                    self.end_value(start, end, tag);
                }
                closed
            }
            _ => false,
        }
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
    fn give_back(&mut self, end: usize, out: &mut Vec<ContentDelta>) -> bool {
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

fn give_text(out: &mut Vec<ContentDelta>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(ContentDelta::Text(before)) => before.push_str(text),
        _ => out.push(ContentDelta::Text(text.to_owned())),
    }
}
