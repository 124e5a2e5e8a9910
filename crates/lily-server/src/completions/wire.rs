//! The JSON of completions, and their stream.

use lily_protocol::FinishReason;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::answer::{AnswerEvent, Ending, Figures};
use crate::chat::wire::{Head, Usage};
use crate::logprobs::{Alternative, PromptToken, TokenLogprob};
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
    /// `None` for a prompt's first token, before which there is nothing.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Characters of the text before each token.
    text_offset: Vec<usize>,
    /// Of the token after the last.
    #[serde(skip)]
    offset: usize,
}

impl Logprobs {
    /// The first token is this many characters behind the start of the text.
    fn from(offset: usize) -> Self {
        Logprobs { offset, ..Logprobs::default() }
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt(&mut self, tokens: &[PromptToken]) {
        for PromptToken { token, logprob, top_logprobs } in tokens {
            self.push(token, *logprob, top_logprobs);
        }
    }

    /// Tokens of the answer.
    pub(crate) fn answer(&mut self, tokens: &[TokenLogprob]) {
        for TokenLogprob { chosen, top_logprobs } in tokens {
            self.push(&chosen.token, Some(chosen.logprob), top_logprobs);
        }
    }

    fn push(&mut self, token: &str, logprob: Option<f32>, top: &[Alternative]) {
        let top = || top.iter().map(|other| (other.token.clone(), Value::from(other.logprob))).collect();
        self.tokens.push(token.to_owned());
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(logprob.map(|_| top()));
        self.text_offset.push(self.offset);
        self.offset += token.chars().count();
    }
}

pub(crate) fn finish_reason(ending: &Ending) -> &'static str {
    match ending.reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// What the pieces of a stream hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    pub(crate) timings: bool,
}

/// The wording of a stream: pieces, each with the text that came, one with the reason of the end, `[DONE]`.
pub(crate) struct TextWording {
    head: Head,
    /// What each answer begins with, until it was said.
    echo: Vec<String>,
    /// Characters so far, of each answer.
    offsets: Vec<usize>,
    options: Options,
    usage: Usage,
    /// Of all prompts together.
    prompt_tokens: usize,
    /// Of the answer that speaks.
    timings: Option<Timings>,
}

impl TextWording {
    /// `echo`: what each answer begins with.
    pub(crate) fn new(head: Head, echo: Vec<String>, options: Options, prompt_tokens: usize) -> Self {
        let (offsets, usage) = (vec![0; echo.len()], Usage::default());
        TextWording { head, echo, offsets, options, usage, prompt_tokens, timings: None }
    }

    fn piece(&self, choice: Choice, timings: Option<Timings>, out: &mut Vec<u8>) {
        sse::data(&Completion { head: &self.head, choices: vec![choice], usage: None, timings }, out);
    }

    /// What answers begin with, where it has no log probabilities to wait for.
    fn say_echo(&mut self, index: usize, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.echo[index]);
        if !text.is_empty() {
            self.offsets[index] += text.chars().count();
            self.piece(Choice { index, text, logprobs: None, finish_reason: None }, None, out);
        }
    }
}

impl Wording for TextWording {
    fn opening(&mut self, out: &mut Vec<u8>) {
        if !self.options.logprobs {
            (0..self.echo.len()).for_each(|index| self.say_echo(index, out));
        }
    }

    fn wants_figures(&self) -> bool {
        self.options.timings
    }

    fn figures(&mut self, figures: &Figures) {
        self.timings = Some(Timings::of(figures));
    }

    fn event(&mut self, index: usize, event: AnswerEvent, out: &mut Vec<u8>) -> bool {
        match event {
            AnswerEvent::Prompt(tokens) => {
                let mut lists = Logprobs::from(self.offsets[index]);
                lists.prompt(&tokens);
                self.offsets[index] = lists.offset;
                let text = std::mem::take(&mut self.echo[index]);
                let choice = Choice { index, text, logprobs: Some(lists), finish_reason: None };
                self.piece(choice, self.timings, out);
            }
            AnswerEvent::Content(text, tokens) => {
                let logprobs = self.options.logprobs.then(|| {
                    let mut lists = Logprobs::from(self.offsets[index]);
                    lists.answer(&tokens);
                    self.offsets[index] = lists.offset;
                    lists
                });
                self.piece(Choice { index, text, logprobs, finish_reason: None }, self.timings, out);
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
        if self.options.include_usage {
            self.usage.set_prompt_tokens(self.prompt_tokens);
            let usage = Some(self.usage);
            sse::data(&Completion { head: &self.head, choices: Vec::new(), usage, timings: None }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
