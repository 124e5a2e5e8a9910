//! What a generation request is, and what comes back: the wall between those who know text and those who know tensors.
//!
//! A front end (server, command line) turns messages into token ids, submits a [`GenerationRequest`] to an [`Engine`]
//! and reads [`Event`]s. It never sees a device. An engine sees token ids and never text. Both sides, and the scripted
//! engine of the tests, depend on this crate and not on each other.
//!
//! Life of a request: `submit` either refuses at once ([`SubmitError`]) or returns a [`Generation`]. Its events are any
//! number of [`Event::Prefill`], then [`Event::Prompt`] if the request asked for it, then any number of [`Event::Tokens`],
//! then exactly one [`Event::Finished`] or [`Event::Failed`]. Dropping the `Generation` cancels the work.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

/// How the next token is chosen. [`Sampling::greedy`] and then set what differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy: the largest logit after penalties and bias, the lower id on equal values. Finite, >= 0.
    pub temperature: f32,
    /// Keep the smallest set of most probable tokens whose probabilities sum to at least this. In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Drop tokens less probable than this share of the most probable one. In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occur in prompt or output (Keskar et al. 2019,
    /// CTRL). > 0; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each token that occurs in the output so far (OpenAI).
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each of its occurrences in the output so far (OpenAI).
    pub frequency_penalty: f32,
    /// Added to the logits of these ids, before anything else is applied.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed and request give the same tokens, whatever ran before or runs beside.
    pub seed: u64,
}

impl Sampling {
    /// Always the most probable token; nothing else applied.
    pub fn greedy() -> Self {
        Sampling {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// One generation: a prompt and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationRequest {
    /// Token ids, at least one, each below the tokenizer's size.
    pub prompt: Vec<u32>,
    /// The text that the ids were made from, if any, exactly: tokenizers normalize, so the ids do not give it back. For
    /// engines that show or search prompts; what is generated depends on the ids alone.
    pub text: Option<Arc<str>>,
    /// Ends with [`FinishReason::Length`] after this many tokens; `None` means the rest of the context.
    pub max_tokens: Option<usize>,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// `Some(n)`: each token comes with its log probability and the `n` most probable alternatives (n may be 0).
    /// Probabilities are those of the model itself: softmax of the raw logits, before temperature, penalties and bias.
    pub logprobs: Option<usize>,
    /// `Some(n)`: the tokens of the prompt come with theirs too, in [`Event::Prompt`]. Nothing of the prompt is then reused.
    pub prompt_logprobs: Option<usize>,
    /// Never choose an end token (the answer then runs to `max_tokens`, a stop string or a cancel).
    pub ignore_end: bool,
}

/// Log probability of a chosen token and of its likeliest alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// (id, log probability) by falling probability.
    pub top: Vec<(u32, f32)>,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Present when the request asked for it.
    pub logprobs: Option<Logprobs>,
}

/// Why a generation ended by itself. A stop string is the front end's matter: it drops the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced an end token.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

/// Counts and times of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was reused instead of computed.
    pub cached_tokens: usize,
    /// Tokens generated, the end token included.
    pub completion_tokens: usize,
    /// Seconds from submission to the start of prefill.
    pub queue_seconds: f64,
    /// Seconds spent on the prompt.
    pub prefill_seconds: f64,
    /// Seconds spent on generated tokens, from the end of prefill.
    pub decode_seconds: f64,
}

/// What an engine says while it works.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Progress on the prompt; sent at the start (with the cached part as `done`) and after each chunk.
    Prefill {
        /// Tokens of the prompt that are done, reused ones included.
        done: usize,
        /// Of these, reused.
        cached: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Of each token of the prompt: what its probability was after those before it. `None` for the first, before which there is
    /// nothing.
    Prompt(Vec<Option<Logprobs>>),
    /// One step's tokens: one, or several where the engine verified a draft. An end token is not among them.
    Tokens(Vec<Token>),
    /// The last event of a generation that went well.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The last event of a generation that did not: a sentence for the user.
    Failed(String),
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests wait.
    #[error("no more requests may wait, {waiting} do already; try again in {retry_after_seconds} s")]
    QueueFull {
        /// Requests waiting now.
        waiting: usize,
        /// A guess at when a place is free.
        retry_after_seconds: u64,
    },
    /// Prompt and the first generated token do not fit.
    #[error(
        "this model's maximum context length is {context} tokens, and the prompt has {prompt} tokens: \
         the request exceeds the available context size"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// The served window.
        context: usize,
    },
    /// An id the model does not have.
    #[error("token id {id} is outside the vocabulary of {size} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Ids are below this.
        size: usize,
    },
    /// An empty prompt.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// The engine is draining, or it died.
    #[error("the engine is shutting down and takes no new requests")]
    ShuttingDown,
}

/// What a front end may know of the model behind an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tokens that a prompt and its answer may have together, as served.
    pub context: usize,
    /// The model's own limit.
    pub model_context: usize,
    /// Generated and accepted ids are below this (the padded rows of the vocabulary are above).
    pub vocabulary: usize,
}

/// How busy an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests being worked on.
    pub running: usize,
    /// Requests waiting for a place.
    pub waiting: usize,
    /// Bytes of session state and prefix cache held now.
    pub state_bytes: usize,
    /// The model was let go, since nobody asked for it; the next request brings it back.
    pub asleep: bool,
}

/// Something that continues prompts. Shared between threads; `submit` never blocks on the work itself.
pub trait Engine: Send + Sync + 'static {
    /// The limits of what is served; constant over the engine's life.
    fn limits(&self) -> Limits;
    /// Takes a request, or says why not.
    fn submit(&self, request: GenerationRequest) -> Result<Generation, SubmitError>;
    /// How busy it is now.
    fn load(&self) -> Load;
}

/// The running side of one request: read its events; drop it to cancel.
#[derive(Debug)]
pub struct Generation {
    events: mpsc::UnboundedReceiver<Event>,
    cancelled: Arc<AtomicBool>,
}

/// The engine's side of a [`Generation`].
#[derive(Clone, Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<Event>,
    cancelled: Arc<AtomicBool>,
}

/// A connected pair. The channel is unbounded on purpose: it holds at most one context of tokens, and an engine must
/// never wait for a slow reader.
pub fn generation() -> (EventSender, Generation) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    (EventSender { events: sender, cancelled: cancelled.clone() }, Generation { events: receiver, cancelled })
}

impl Generation {
    /// The next event; `None` after the last one, or when the engine died.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The same for a thread outside any async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

impl EventSender {
    /// Sends an event; a reader that went away is not an error (see [`EventSender::cancelled`]).
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// True once the reader is gone: stop working on this request.
    pub fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_generation_cancels() {
        let (sender, mut generation) = generation();
        sender.send(Event::Failed("x".into()));
        assert!(!sender.cancelled());
        assert_eq!(generation.next_blocking(), Some(Event::Failed("x".into())));
        drop(generation);
        assert!(sender.cancelled());
        sender.send(Event::Failed("nobody reads this".into()));
    }
}
