//! Keeping text from users apart from the template's markers.
//!
//! A template joins both into one text, in which a typed `<|im_end|>` looks like the end of a turn. So wherever a user's
//! text could be taken for a marker, a private character is put into it before rendering: one that occurs nowhere in
//! the conversation or the template. What still reads as a marker afterwards was written by the template. The private
//! characters are left out when the text is encoded, so it reaches the model as it was typed.
//!
//! A text can also become *part* of a marker: a name that ends in `<|im_end|` before a template's `>`. So texts that end
//! in the start of a marker, or begin with the end of one, are fenced off at that edge, and, where the template writes
//! the start of a marker right before a value, texts that are the middle of one.
//!
//! Templates look into texts too: for `</think>` in an assistant's, for `<tool_response>` around a user's. The broken
//! marker would be missed there. [`Variant`] lists ways to leave such a text readable for the template, and the caller
//! takes the first whose rendering is the plain one.

use std::collections::HashSet;

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::whitespace::{is_blank, strip};
use crate::chat::{Chat, Message, Role};
use crate::tokenizer::Tokenizer;

const RESPONSE_OPEN: &str = "<tool_response>";
const RESPONSE_CLOSE: &str = "</tool_response>";
const THINK_CLOSE: &str = "</think>";

/// Characters that occur neither in a conversation nor in the template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Private {
    /// Stands inside what is not a marker.
    pub(super) breaker: char,
    /// Stands beside a whole marker that is a user's text.
    pub(super) fence: char,
    /// Opens the text of a substituted turn; see [`super::repair`].
    pub(super) open: char,
    /// Closes it.
    pub(super) close: char,
    /// Is the text of a question that is taken out again.
    pub(super) question: char,
}

impl Private {
    /// `None` if a conversation uses every candidate, which takes half a megabyte of private-use characters.
    pub(super) fn absent_from(chat: &Chat, source: &str) -> Option<Self> {
        let candidates = || ('\u{FDD0}'..='\u{FDEF}').chain('\u{100000}'..='\u{10FFFD}');
        let mut used: HashSet<char> = HashSet::new();
        let mut note = |text: &str| {
            used.extend(text.chars().filter(|c| matches!(c, '\u{FDD0}'..='\u{FDEF}' | '\u{100000}'..)));
        };
        note(source);
        each_text(chat, &mut note);
        let mut free = candidates().filter(|c| !used.contains(c));
        Some(Private {
            breaker: free.next()?,
            fence: free.next()?,
            open: free.next()?,
            close: free.next()?,
            question: free.next()?,
        })
    }

    /// The text as it was typed.
    pub(super) fn remove_from(&self, text: &str) -> String {
        text.replace([self.breaker, self.fence], "")
    }
}

/// The markers of one vocabulary, as text.
#[derive(Debug)]
pub(super) struct Markers {
    matcher: AhoCorasick,
    texts: Vec<String>,
    /// What a text must not end in, or begin with: every proper start, and every proper end, of a marker.
    starts: HashSet<String>,
    ends: HashSet<String>,
    longest: usize,
    /// Whether the template writes the start of a marker right before something else.
    opened_by_template: bool,
}

impl Markers {
    pub(super) fn new(tokenizer: &Tokenizer, source: &str) -> Self {
        let texts: Vec<String> = tokenizer.added().iter().map(|token| token.content.clone()).collect();
        let (mut starts, mut ends) = (HashSet::new(), HashSet::new());
        for text in &texts {
            for (at, _) in text.char_indices().skip(1) {
                starts.insert(text[..at].to_owned());
                ends.insert(text[at..].to_owned());
            }
        }
        let opens = |start: &String| {
            ["'", "\"", "{{", "{%"].iter().any(|then| source.contains(&format!("{start}{then}")))
        };
        Markers {
            matcher: tokenizer.matcher().clone(),
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            opened_by_template: starts.iter().any(opens),
            texts,
            starts,
            ends,
        }
    }

    /// Whether any text of the conversation could be taken for a marker, or for a part of one.
    pub(super) fn any_in(&self, chat: &Chat) -> bool {
        let mut any = false;
        each_text(chat, &mut |text| any = any || !self.cuts(text).is_empty());
        any
    }

    /// The text with `breaker` wherever it needs one.
    fn protect(&self, text: &str, breaker: char) -> String {
        let mut out = String::with_capacity(text.len() + 8);
        let mut done = 0;
        for cut in self.cuts(text) {
            out.push_str(&text[done..cut]);
            out.push(breaker);
            done = cut;
        }
        out.push_str(&text[done..]);
        out
    }

    /// Byte positions where a private character has to stand, ascending.
    fn cuts(&self, text: &str) -> Vec<usize> {
        let mut cuts = Vec::new();
        let mut from = 0;
        while let Some(found) = self.matcher.find(&text[from..]) {
            let start = from + found.start();
            let first = text[start..].chars().next().map_or(1, char::len_utf8);
            from = start + first;
            cuts.push(from);
        }
        let (end, start) = (text.trim_end().len(), text.len() - text.trim_start().len());
        let near = |from: usize, to: usize| (from..to).filter(|&at| text.is_char_boundary(at));
        if start < end {
            let visible = &text[start..end];
            let middle = self.opened_by_template
                && visible.len() <= self.longest
                && self.texts.iter().any(|marker| marker.contains(visible));
            if middle
                || near(start + 1, end.min(start + self.longest) + 1)
                    .any(|at| self.ends.contains(&text[start..at]))
            {
                cuts.push(start);
            }
            if near(start.max(end.saturating_sub(self.longest)), end)
                .any(|at| self.starts.contains(&text[at..end]))
            {
                cuts.push(end);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }
}

/// How much of what users typed stays readable for the template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    /// Whether an assistant's reasoning is taken out of its content beforehand.
    split: Split,
    /// The tool response around a user's text keeps its markers, with a fence inside.
    responses: bool,
}

/// Taking reasoning out of content as templates do it, which look for `</think>` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Left alone.
    No,
    /// The template may trim what is left.
    Trimmed,
    /// What is left is fenced off from being trimmed: some templates trim before they split, and not after.
    Kept,
}

impl Variant {
    /// From the simplest to the most permissive.
    pub(super) const ALL: [Variant; 5] = [
        Variant { split: Split::No, responses: false },
        Variant { split: Split::Trimmed, responses: false },
        Variant { split: Split::Kept, responses: false },
        Variant { split: Split::Trimmed, responses: true },
        Variant { split: Split::Kept, responses: true },
    ];
}

/// The conversation with private characters in every text that needs them.
pub(super) fn apply(chat: &Chat, markers: &Markers, private: &Private, variant: Variant) -> Chat {
    let protect = |text: &str| markers.protect(text, private.breaker);
    let message = |message: &Message| {
        let mut message = message.clone();
        if message.images.is_empty() {
            let split = variant.split != Split::No && split_reasoning(&mut message);
            let fence_off = split && variant.split == Split::Kept && message.content.starts_with(is_blank);
            message.content = match fenced_response(&message, variant) {
                Some(inner) => {
                    let (fence, inner) = (private.fence, protect(inner));
                    format!("{RESPONSE_OPEN}{fence}{inner}{fence}{RESPONSE_CLOSE}")
                }
                None => protect(&message.content),
            };
            if fence_off {
                message.content.insert(0, private.breaker);
            }
        } else {
            protect_around_images(&mut message, &protect);
        }
        message.reasoning = message.reasoning.as_deref().map(protect);
        message.tool_call_id = message.tool_call_id.as_deref().map(protect);
        message.name = message.name.as_deref().map(protect);
        for call in &mut message.tool_calls {
            call.id = call.id.as_deref().map(protect);
            call.name = protect(&call.name);
            call.arguments = map_json(&call.arguments, &protect);
        }
        message
    };
    Chat {
        messages: chat.messages.iter().map(message).collect(),
        tools: chat.tools.iter().map(|tool| map_json(tool, &protect)).collect(),
        extra: chat.extra.iter().map(|(name, value)| (name.clone(), map_json(value, &protect))).collect(),
        ..*chat
    }
}

/// Protects the content between images, whose places move with what is put in.
fn protect_around_images(message: &mut Message, protect: &dyn Fn(&str) -> String) {
    let mut content = String::new();
    let mut from = 0;
    for place in &mut message.images {
        content.push_str(&protect(&message.content[from..*place]));
        from = std::mem::replace(place, content.len());
    }
    content.push_str(&protect(&message.content[from..]));
    message.content = content;
}

/// The text inside a user's tool response.
fn fenced_response(message: &Message, variant: Variant) -> Option<&str> {
    if !variant.responses || message.role != Role::User {
        return None;
    }
    strip(&message.content).strip_prefix(RESPONSE_OPEN)?.strip_suffix(RESPONSE_CLOSE)
}

/// What the family's templates do to an assistant's content that has its reasoning in it. False if it has none.
fn split_reasoning(message: &mut Message) -> bool {
    if message.role != Role::Assistant || message.reasoning.is_some() {
        return false;
    }
    let content = strip(&message.content);
    let (Some((first, _)), Some((_, last))) =
        (content.split_once(THINK_CLOSE), content.rsplit_once(THINK_CLOSE))
    else {
        return false;
    };
    let first = first.trim_end_matches('\n');
    let reasoning =
        first.rsplit_once("<think>").map_or(first, |(_, thought)| thought).trim_start_matches('\n');
    (message.reasoning, message.content) =
        (Some(reasoning.to_owned()), last.trim_start_matches('\n').to_owned());
    true
}

fn map_json(value: &Value, protect: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(protect(text)),
        Value::Array(items) => items.iter().map(|item| map_json(item, protect)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (protect(key), map_json(value, protect))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// Calls `visit` with every text that comes from outside.
pub(super) fn each_text(chat: &Chat, visit: &mut dyn FnMut(&str)) {
    for message in &chat.messages {
        visit(&message.content);
        let optional = [&message.reasoning, &message.tool_call_id, &message.name];
        optional.into_iter().flatten().for_each(|text| visit(text));
        for call in &message.tool_calls {
            visit(&call.name);
            call.id.iter().for_each(|id| visit(id));
            each_json_text(&call.arguments, visit);
        }
    }
    chat.tools.iter().chain(chat.extra.values()).for_each(|value| each_json_text(value, visit));
}

fn each_json_text(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_json_text(item, visit)),
        Value::Object(fields) => {
            for (key, value) in fields {
                visit(key);
                each_json_text(value, visit);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
