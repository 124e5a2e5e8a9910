//! From an engine's events to what a client may be told: text by channel, tool calls, log probabilities, an end with its
//! figures.
//!
//! This is the one event model beneath every API family. It is a poll and not a future, because the body of a response
//! is polled, and because dropping an [`Answer`] at any point must cancel its generation and nothing more.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lily_protocol::{Event, FinishReason, Generation, SubmitError, Token};
use lily_text::{Channel, ContentEnd, Delta, OutputStream, TextModel};
use tokio::time::Sleep;

use crate::budget::Budget;
use crate::calls::{CallReader, CallStart, Said};
use crate::errors::{ApiError, Kind};
use crate::logprobs::{self, HeldLogprobs, PromptToken, TokenLogprob};
use crate::metrics::Metrics;
use crate::service::Service;
use crate::times::{Clock, Times};

/// Something to tell the client about one answer.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// How far the prompt is; only before anything else.
    Progress(Progress),
    /// Log probabilities of the prompt's tokens, if they were asked for; before anything else of the answer.
    Prompt(Vec<PromptToken>),
    /// More reasoning.
    Reasoning(String),
    /// More content, and the log probabilities of the tokens whose text is complete with it. Either may be empty: the
    /// markup of a call is no content, but its tokens have log probabilities.
    Content(String, Vec<TokenLogprob>),
    /// A call begins. Its arguments go on until it ends, and no text comes between.
    CallStart(CallStart),
    /// More arguments of the call.
    Arguments(String),
    /// The end of the call. Arguments that are not JSON by then were broken off.
    CallEnd,
    /// The end; nothing follows.
    Finished(Ending),
    /// The engine gave up, or there was no more time; nothing follows.
    Failed(ApiError),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    /// The stop string that was found.
    pub(crate) stop: Option<String>,
    /// Whole calls that were made.
    pub(crate) calls: usize,
    pub(crate) figures: Figures,
}

/// How far the prompt is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    pub(crate) done: usize,
    pub(crate) cached: usize,
    pub(crate) total: usize,
    /// Since the request was taken.
    pub(crate) milliseconds: f64,
}

/// The counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    pub(crate) times: Times,
}

/// One running answer.
pub(crate) struct Answer {
    /// `None` once it ended: the engine may use its place for others.
    generation: Option<Generation>,
    output: OutputStream,
    calls: CallReader,
    /// Until the reasoning is over.
    budget: Option<Budget>,
    /// Until its log probabilities are told, if they are.
    prompt: Vec<u32>,
    /// Tokens that were said before the reasoning was closed by its budget.
    before: usize,
    text: Arc<TextModel>,
    metrics: Arc<Metrics>,
    held: Option<HeldLogprobs>,
    figures: Figures,
    clock: Clock,
    /// When the answer has to be complete.
    deadline: Option<(Duration, Pin<Box<Sleep>>)>,
    ready: VecDeque<AnswerEvent>,
}

impl Answer {
    pub(crate) fn new(
        generation: Generation,
        output: OutputStream,
        calls: CallReader,
        budget: Option<Budget>,
        service: &Service,
        prompt: Vec<u32>,
        logprobs: bool,
    ) -> Self {
        Answer {
            generation: Some(generation),
            output,
            calls,
            budget,
            figures: Figures { prompt_tokens: prompt.len(), ..Figures::default() },
            prompt,
            before: 0,
            text: service.text.clone(),
            metrics: service.metrics.clone(),
            held: logprobs.then(HeldLogprobs::default),
            clock: Clock::start(),
            deadline: service.request_timeout.map(|time| (time, Box::pin(tokio::time::sleep(time)))),
            ready: VecDeque::new(),
        }
    }

    /// The next event; `None` after the last.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(event));
            }
            let Some(generation) = &mut self.generation else { return Poll::Ready(None) };
            // A fresh future each time loses nothing: receiving from the channel can be cancelled.
            let next = pin!(generation.next()).poll(context);
            match next {
                Poll::Pending => match self.out_of_time(context) {
                    Some(error) => self.fail(error),
                    None => return Poll::Pending,
                },
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => {
                    let message = "the engine stopped before the answer was complete";
                    self.fail(Kind::EngineFailed.error(message));
                }
            }
        }
    }

    /// What it took so far.
    pub(crate) fn figures(&self) -> Figures {
        Figures { times: self.clock.times(), ..self.figures }
    }

    fn out_of_time(&mut self, context: &mut Context<'_>) -> Option<ApiError> {
        let (time, sleep) = self.deadline.as_mut()?;
        let over = sleep.as_mut().poll(context).is_ready();
        over.then(|| {
            Kind::TimedOut.error(format!("the answer was not complete after {} s", time.as_secs_f64()))
        })
    }

    fn take(&mut self, event: Event) {
        match event {
            // The same prompt again, and what was said behind it: nothing new.
            Event::Prefill { .. } if self.before > 0 => {}
            Event::Prefill { done, cached, total } => {
                self.figures.cached_tokens = cached;
                let milliseconds = self.clock.prefill();
                self.ready.push_back(AnswerEvent::Progress(Progress { done, cached, total, milliseconds }));
            }
            Event::Prompt(known) => {
                let prompt = std::mem::take(&mut self.prompt);
                let tokens = logprobs::of_prompt(&prompt, &known, self.text.tokenizer());
                self.ready.push_back(AnswerEvent::Prompt(tokens));
            }
            Event::Tokens(tokens) => {
                self.clock.token();
                for token in tokens {
                    // What else came with it is not part of the answer.
                    if !self.push(token) || self.generation.is_none() {
                        break;
                    }
                }
            }
            Event::Finished { reason, usage } => {
                if self.before == 0 {
                    self.figures.cached_tokens = usage.cached_tokens;
                }
                self.figures.completion_tokens = self.before + usage.completion_tokens;
                let rest = self.output.finish();
                self.emit(rest);
                if self.generation.is_some() {
                    let logprobs = self.held.as_mut().map(HeldLogprobs::release_all).unwrap_or_default();
                    self.content(String::new(), logprobs);
                    let end = match reason {
                        FinishReason::Stop => ContentEnd::Turn,
                        FinishReason::Length => ContentEnd::Limit,
                    };
                    self.end(reason, end, None);
                }
            }
            Event::Failed(message) => self.fail(Kind::EngineFailed.error(message)),
        }
    }

    /// False if the reasoning was closed behind this token.
    fn push(&mut self, token: Token) -> bool {
        let step = self.output.push(token.id);
        self.figures.completion_tokens += 1;
        match step.channel {
            Channel::Reasoning => self.figures.reasoning_tokens += 1,
            Channel::Content => {
                if let (Some(held), Some(logprobs)) = (&mut self.held, &token.logprobs) {
                    held.push(token.id, logprobs, self.text.tokenizer());
                }
            }
            Channel::Marker => {}
        }
        self.emit(step.deltas);
        if step.stopped.is_some() && self.generation.is_some() {
            let logprobs = self.held.as_mut().map(HeldLogprobs::release_begun).unwrap_or_default();
            self.content(String::new(), logprobs);
            self.end(FinishReason::Stop, ContentEnd::StopString, step.stopped);
        }
        if self.is_spent(token.id, step.channel) {
            self.close_reasoning();
            return false;
        }
        true
    }

    /// Whether the reasoning has to end with this token.
    fn is_spent(&mut self, id: u32, channel: Channel) -> bool {
        let Some(budget) = &mut self.budget else { return false };
        match channel {
            Channel::Reasoning => budget.note(id, self.figures.reasoning_tokens),
            Channel::Marker => budget.note(id, 0),
            Channel::Content => {
                self.budget = None;
                false
            }
        }
    }

    /// The budget of the reasoning is spent.
    fn close_reasoning(&mut self) {
        let Some(budget) = self.budget.take() else { return };
        match budget.go_on(&self.text) {
            Ok((generation, close)) => {
                self.generation = Some(generation);
                self.before = self.figures.completion_tokens;
                for id in close {
                    let step = self.output.push(id);
                    self.emit(step.deltas);
                }
            }
            Err(SubmitError::ContextExceeded { .. }) => {
                self.end(FinishReason::Length, ContentEnd::Limit, None);
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// What one event of the engine brings for one channel is told in one piece. A call may end the answer.
    fn emit(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    self.calls.reasoning(&text);
                    match self.ready.back_mut() {
                        Some(AnswerEvent::Reasoning(before)) => before.push_str(&text),
                        _ => self.ready.push_back(AnswerEvent::Reasoning(text)),
                    }
                }
                Delta::Content(text) => {
                    let logprobs =
                        self.held.as_mut().map(|held| held.release(text.len())).unwrap_or_default();
                    self.content(String::new(), logprobs);
                    let said = self.calls.push(text);
                    self.say(said);
                    if self.calls.is_over() {
                        self.end(FinishReason::Stop, ContentEnd::StopString, None);
                        return;
                    }
                }
            }
        }
    }

    fn say(&mut self, said: Vec<Said>) {
        for said in said {
            match said {
                Said::Text(text) => self.content(text, Vec::new()),
                Said::CallStart(call) => self.ready.push_back(AnswerEvent::CallStart(call)),
                Said::Arguments(json) => match self.ready.back_mut() {
                    Some(AnswerEvent::CallStart(CallStart { arguments, .. })) => arguments.push_str(&json),
                    Some(AnswerEvent::Arguments(before)) => before.push_str(&json),
                    _ => self.ready.push_back(AnswerEvent::Arguments(json)),
                },
                Said::CallEnd => self.ready.push_back(AnswerEvent::CallEnd),
            }
        }
    }

    fn content(&mut self, text: String, logprobs: Vec<TokenLogprob>) {
        if text.is_empty() && logprobs.is_empty() {
            return;
        }
        match self.ready.back_mut() {
            Some(AnswerEvent::Content(before, earlier)) => {
                before.push_str(&text);
                earlier.extend(logprobs);
            }
            _ => self.ready.push_back(AnswerEvent::Content(text, logprobs)),
        }
    }

    fn end(&mut self, reason: FinishReason, end: ContentEnd, stop: Option<String>) {
        self.generation = None;
        let rest = self.calls.finish(end);
        self.say(rest);
        self.figures.times = self.clock.times();
        let ending = Ending { reason, stop, calls: self.calls.calls(), figures: self.figures };
        self.metrics.ended(&ending);
        self.ready.push_back(AnswerEvent::Finished(ending));
    }

    fn fail(&mut self, error: ApiError) {
        self.generation = None;
        self.figures.times = self.clock.times();
        self.metrics.failed(&self.figures);
        self.ready.push_back(AnswerEvent::Failed(error));
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.generation.is_some() {
            self.figures.times = self.clock.times();
            self.metrics.cancelled(&self.figures);
        }
    }
}

/// The answers to one request.
pub(crate) struct Answers {
    answers: Vec<Answer>,
    /// Where the next poll begins, so that a fast answer cannot starve the others.
    first: usize,
}

impl Answers {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        Answers { answers, first: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    /// What this answer took so far.
    pub(crate) fn figures(&self, answer: usize) -> Figures {
        self.answers[answer].figures()
    }

    /// The next event of any answer, with the answer's number; `None` after the last of all.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, AnswerEvent)>> {
        let count = self.answers.len();
        let mut waiting = false;
        for offset in 0..count {
            let at = (self.first + offset) % count;
            match self.answers[at].poll(context) {
                Poll::Ready(Some(event)) => {
                    self.first = (at + 1) % count;
                    return Poll::Ready(Some((at, event)));
                }
                Poll::Ready(None) => {}
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(None) }
    }

    /// The next event, for a caller that has nothing else to wait for.
    pub(crate) async fn next(&mut self) -> Option<(usize, AnswerEvent)> {
        std::future::poll_fn(|context| self.poll(context)).await
    }
}
