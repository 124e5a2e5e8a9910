//! The JSON of completions, and their stream.

use lily_protocol::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer::{AnswerEvent, Ending};
use crate::chat::wire::{Head, Usage};
use crate::logprobs::TokenLogprob;
use crate::sse::{self, Wording};
use crate::times::Timings;

/// `object` of an answer, whole or a piece of it.
pub(crate) const OBJECT: &str = "text_completion";

/// An answer, or a piece of one.
#[derive(Serialize)]
pub(crate) struct Completion<'a> {
    #[serde(flatten)]
    pub(crate) head: &'a Head,
    pub(crate) choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
}

#[derive(Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<Logprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

/// Lists with an entry for each token.
#[derive(Default, Serialize)]
pub(crate) struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    /// Characters of the answer's text before each token.
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// `offset` is that of the first token; returns that of the one after the last.
    pub(crate) fn of(tokens: &[TokenLogprob], mut offset: usize) -> (Self, usize) {
        let mut lists = Logprobs::default();
        for token in tokens {
            lists.tokens.push(token.chosen.token.clone());
            lists.token_logprobs.push(token.chosen.logprob);
            let top =
                token.top_logprobs.iter().map(|other| (other.token.clone(), Value::from(other.logprob)));
            lists.top_logprobs.push(top.collect());
            lists.text_offset.push(offset);
            offset += token.chosen.token.chars().count();
        }
        (lists, offset)
    }
}

pub(crate) fn finish_reason(ending: &Ending) -> &'static str {
    match ending.reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// The wording of a stream: pieces, each with the text that came, one with the reason of the end, `[DONE]`.
pub(crate) struct TextWording {
    pub(crate) head: Head,
    /// What each answer begins with.
    pub(crate) echo: Vec<String>,
    /// Characters so far, of each answer.
    pub(crate) offsets: Vec<usize>,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    pub(crate) usage: Usage,
    /// Of all prompts together.
    pub(crate) prompt_tokens: usize,
}

impl TextWording {
    fn piece(&self, choice: Choice, timings: Option<Timings>, out: &mut Vec<u8>) {
        sse::data(&Completion { head: &self.head, choices: vec![choice], usage: None, timings }, out);
    }
}

impl Wording for TextWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.echo.len() {
            let text = std::mem::take(&mut self.echo[index]);
            if !text.is_empty() {
                self.piece(Choice { index, text, logprobs: None, finish_reason: None }, None, out);
            }
        }
    }

    fn event(&mut self, index: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Content(text, tokens) => {
                let logprobs = self.logprobs.then(|| {
                    let (lists, offset) = Logprobs::of(&tokens, self.offsets[index]);
                    self.offsets[index] = offset;
                    lists
                });
                self.piece(Choice { index, text, logprobs, finish_reason: None }, None, out);
            }
            AnswerEvent::Finished(ending) => {
                self.usage.add(ending.figures);
                let finish_reason = Some(finish_reason(&ending));
                let choice = Choice { index, text: String::new(), logprobs: None, finish_reason };
                self.piece(choice, Some(Timings::of(&ending.figures)), out);
            }
            AnswerEvent::Failed(error) => {
                sse::data(&error.body(), out);
                return false;
            }
            // Without a conversation there are neither reasoning nor calls.
            AnswerEvent::Progress(_)
            | AnswerEvent::Reasoning(_)
            | AnswerEvent::CallStart(_)
            | AnswerEvent::Arguments(_)
            | AnswerEvent::CallEnd => {}
        }
        true
    }

    fn closing(&mut self, out: &mut Vec<u8>) {
        if self.include_usage {
            self.usage.set_prompt_tokens(self.prompt_tokens);
            let usage = Some(self.usage);
            sse::data(&Completion { head: &self.head, choices: Vec::new(), usage, timings: None }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
