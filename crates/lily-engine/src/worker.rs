//! The engine's thread: receive, admit, act, finish; one small step at a time, so that after each it can look for new
//! requests and for cancelled ones. With nothing to do it sleeps in the channel.

mod ahead;
mod decode;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use lily_model::{DeviceError, Forward};
use lily_protocol::{Event, FinishReason};

use crate::config::EngineConfig;
use crate::engine::Shared;
use crate::renewal::{Ended, Renewal, Rest};
use crate::sampler::{SamplerError, Scratch};
use crate::sessions::Sessions;
use crate::task::Task;
use crate::turns::{Action, Prompt, Turns};

/// How a request ends. A cancelled one ends without a word.
enum End {
    Finished(FinishReason),
    Failed(String),
    Cancelled,
}

/// What a step found.
enum Round {
    Worked,
    /// Nothing to do, for as long as that may last.
    Idle,
    /// The device is gone, and another one can be made.
    Lost(String),
    /// Nothing more will come.
    Closed,
}

impl From<DeviceError> for End {
    fn from(error: DeviceError) -> Self {
        End::Failed(error.to_string())
    }
}

impl From<SamplerError> for End {
    fn from(error: SamplerError) -> Self {
        End::Failed(error.to_string())
    }
}

/// All that the thread owns. A task stays in one of the two lists through every call into the model, so that it can be
/// told when one of them panics.
pub(crate) struct Worker {
    sessions: Sessions,
    receiver: Receiver<Task>,
    shared: Arc<Shared>,
    waiting: VecDeque<Task>,
    /// With a sequence each.
    live: Vec<Task>,
    turns: Turns,
    /// Whose tokens the steps under way choose, row by row; by arrival.
    rows: Vec<u64>,
    scratch: Scratch,
    /// Memory was short: nobody is admitted until one of the live requests has ended. Without this rule a preempted
    /// request would take back at once what it gave to the others.
    memory_short: bool,
    end_tokens: Vec<u32>,
    vocabulary: usize,
    chunk: usize,
    parallel: usize,
    state_memory: usize,
    total_memory: usize,
    /// How long there may be nothing to do before this ends; `None`: for ever.
    patience: Option<Duration>,
    /// The model can be made again.
    is_renewable: bool,
}

impl Worker {
    pub(crate) fn new(
        config: &EngineConfig,
        forward: Box<dyn Forward>,
        receiver: Receiver<Task>,
        shared: Arc<Shared>,
        renewal: Option<&Renewal>,
    ) -> Self {
        Worker {
            sessions: Sessions::new(forward, config.chunk, config.cache_memory),
            receiver,
            shared,
            waiting: VecDeque::new(),
            live: Vec::new(),
            turns: Turns::default(),
            rows: Vec::new(),
            scratch: Scratch::default(),
            memory_short: false,
            end_tokens: config.end_tokens.clone(),
            vocabulary: config.limits.vocabulary,
            chunk: config.chunk,
            parallel: config.parallel,
            state_memory: config.state_memory,
            total_memory: config.state_memory.saturating_add(config.cache_memory),
            patience: renewal.and_then(|renewal| renewal.idle),
            is_renewable: renewal.is_some(),
        }
    }

    /// Works, on these to begin with, until the handle closes the channel and all work is done or dropped, or until its patience
    /// with having no work ends, or until the device is lost. The model is gone when this returns.
    pub(crate) fn run(mut self, waiting: VecDeque<Task>) -> Ended {
        self.waiting = waiting;
        let mut last_words = "the engine is shutting down".to_owned();
        let mut sound = true;
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.round())) {
                Ok(Round::Worked) => {}
                Ok(Round::Idle) => return Ended::Idle(self.rest(true)),
                Ok(Round::Lost(why)) => {
                    self.fail_all(&DeviceError::Lost(why.clone()));
                    return Ended::Lost(why, self.rest(false));
                }
                Ok(Round::Closed) => break,
                Err(panic) => {
                    last_words = format!("the engine stopped after a fault of its own: {}", message(&*panic));
                    tracing::error!("{last_words}");
                    sound = false;
                    break;
                }
            }
        }
        self.shared.close();
        while let Ok(task) = self.receiver.try_recv() {
            self.waiting.push_back(task);
        }
        let Worker { sessions, live, waiting, shared, .. } = self;
        for task in live.iter().chain(&waiting) {
            task.events.send(Event::Failed(last_words.clone()));
            shared.ended(None);
        }
        free(sessions, live, sound);
        shared.publish(0, 0);
        Ended::Closed
    }

    /// Lets the model go, which nobody is at work with.
    fn rest(self, sound: bool) -> Rest {
        free(self.sessions, self.live, sound);
        self.shared.publish(0, 0);
        Rest { waiting: self.waiting, receiver: self.receiver }
    }

    /// Ends all that is at work. Its states are gone, and nothing is asked of the device any more.
    fn fail_all(&mut self, error: &DeviceError) {
        for task in self.live.drain(..) {
            self.shared.ended(None);
            task.events.send(Event::Failed(error.to_string()));
        }
    }

    /// One step.
    fn round(&mut self) -> Round {
        match self.receive() {
            Round::Worked if self.shared.aborted() => return Round::Closed,
            Round::Worked => {}
            end => return end,
        }
        if !self.steps_may_go_on() {
            self.settle();
        }
        self.drop_cancelled();
        self.admit();
        self.stay_within_memory();
        match self.next_action() {
            Action::Prefill(arrival) => self.prefill_turn(arrival),
            Action::Decode => self.decode_step(),
            Action::Nothing => self.resolve_stall(),
        }
        self.publish();
        match self.sessions.lost() {
            Some(why) if self.is_renewable => Round::Lost(why.to_owned()),
            _ => Round::Worked,
        }
    }

    /// Takes what has arrived; waits for it if there is nothing else to do.
    fn receive(&mut self) -> Round {
        if self.live.is_empty() && self.waiting.is_empty() {
            let received = match self.patience {
                Some(patience) => self.receiver.recv_timeout(patience),
                None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received {
                Ok(task) => self.waiting.push_back(task),
                Err(RecvTimeoutError::Timeout) => return Round::Idle,
                Err(RecvTimeoutError::Disconnected) => return Round::Closed,
            }
        }
        loop {
            match self.receiver.try_recv() {
                Ok(task) => self.waiting.push_back(task),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Round::Worked,
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let gone = self.live.iter().filter(|task| task.events.cancelled()).map(|task| task.arrival);
        let gone: Vec<u64> = gone.collect();
        if !gone.is_empty() {
            self.settle();
        }
        for arrival in gone {
            // Unless the last steps have ended it.
            if let Some(at) = self.place(arrival) {
                self.end(at, End::Cancelled);
            }
        }
        let before = self.waiting.len();
        self.waiting.retain(|task| !task.events.cancelled());
        (self.waiting.len()..before).for_each(|_| self.shared.ended(None));
    }

    /// Opens sequences for waiting requests, in order of arrival, while there are places and memory.
    fn admit(&mut self) {
        while self.live.len() < self.parallel
            && let Some(task) = self.waiting.front_mut()
        {
            let alone = self.live.is_empty();
            // Live requests grow up to what they were admitted for, so that counts and not only what they hold.
            let promised = self.live.iter().map(|task| self.sessions.need_bytes(task)).sum::<usize>();
            let room = self.state_memory.saturating_sub(promised.max(self.sessions.live_bytes()));
            if !alone && (self.memory_short || self.sessions.need_bytes(task) > room) {
                return;
            }
            task.served = self.turns.count();
            let attached = self.sessions.attach(task);
            if !alone && matches!(attached, Err(DeviceError::OutOfMemory { .. })) {
                self.memory_short = true;
                return;
            }
            self.live.extend(self.waiting.pop_front());
            if let Err(error) = attached {
                self.end(self.live.len() - 1, error.into());
            }
        }
    }

    /// Keeps the sum of live state and cache within the sum of their budgets: the cache gives way, then the youngest.
    fn stay_within_memory(&mut self) {
        while self.sessions.state_bytes() > self.total_memory {
            if !self.sessions.evict() {
                if self.sessions.under_way() > 0 {
                    self.settle();
                    continue;
                }
                if self.live.len() > 1 {
                    self.preempt_youngest();
                    continue;
                }
                return;
            }
        }
    }

    fn next_action(&mut self) -> Action {
        let able = || self.live.iter().filter(|task| task.stalled.is_none());
        let prompts: Vec<_> = able()
            .filter(|task| task.remaining() > 0)
            .map(|task| Prompt { arrival: task.arrival, remaining: task.remaining(), served: task.served })
            .collect();
        let decoding = able().any(|task| task.remaining() == 0);
        self.turns.next(&prompts, decoding)
    }

    /// Computes pieces of one prompt, as many as a chunk holds: a short prompt with several cuts is one turn.
    fn prefill_turn(&mut self, arrival: u64) {
        let Some(at) = self.place(arrival) else { return };
        self.sessions.catch_up(&mut self.live[at]);
        let mut left = self.chunk;
        loop {
            let task = &mut self.live[at];
            let piece = task.next_stop() - task.done;
            if piece > left || task.events.cancelled() {
                break;
            }
            left -= piece;
            let rows = match self.sessions.prefill(task) {
                Ok(rows) => rows,
                Err(error) => return self.stall_or_end(at, error),
            };
            if let Err(error) = self.score(at, rows) {
                return self.end(at, error.into());
            }
            if self.live[at].remaining() == 0 {
                return self.end_prompt(at, rows - 1);
            }
            let task = &self.live[at];
            self.sessions.keep(task);
        }
        self.live[at].served = self.turns.count();
    }

    /// The last `rows` tokens of a prompt that are computed have logits: the prompt's log probabilities, if they are wanted.
    fn score(&mut self, at: usize, rows: usize) -> Result<(), SamplerError> {
        let task = &mut self.live[at];
        let first = task.done - rows;
        (0..rows).try_for_each(|row| {
            task.score(first + row, self.sessions.logits(row), self.vocabulary, &mut self.scratch)
        })
    }

    /// The prompt is done: its last logits, in this row, give the first token, unless this is a repetition.
    fn end_prompt(&mut self, at: usize, row: usize) {
        self.live[at].tell_scores();
        let chosen = if self.live[at].at_front() { self.take_token(at, row) } else { Ok(None) };
        self.sessions.keep(&self.live[at]);
        match chosen {
            Ok(None) => {}
            Ok(Some(reason)) => self.end(at, End::Finished(reason)),
            Err(error) => self.end(at, error.into()),
        }
    }

    fn take_token(&mut self, at: usize, row: usize) -> Result<Option<FinishReason>, SamplerError> {
        let logits = self.sessions.logits(row);
        self.live[at].take_token(logits, &self.end_tokens, self.vocabulary, &mut self.scratch)
    }

    fn fail(&mut self, arrival: u64, error: &DeviceError) {
        if let Some(at) = self.place(arrival) {
            self.stall_or_end(at, error.clone());
        }
    }

    /// Where a live request stands.
    fn place(&self, arrival: u64) -> Option<usize> {
        self.live.iter().position(|task| task.arrival == arrival)
    }

    /// Short memory makes a request wait for the others; everything else ends it.
    fn stall_or_end(&mut self, at: usize, error: DeviceError) {
        match error {
            DeviceError::OutOfMemory { .. } => {
                self.live[at].stalled = Some(error);
                self.memory_short = true;
            }
            // The device's window is the smaller one: for a started answer that is an end like any other.
            DeviceError::ContextFull { .. } if !self.live[at].generated.is_empty() => {
                self.end(at, End::Finished(FinishReason::Length));
            }
            error => self.end(at, error.into()),
        }
    }

    /// Every live request waits for memory: the youngest gives its own up. One alone can wait for nobody and fails.
    fn resolve_stall(&mut self) {
        if self.live.len() > 1 {
            self.preempt_youngest();
        } else if let Some(error) = self.live.first().and_then(|task| task.stalled.clone()) {
            self.end(0, error.into());
        }
    }

    /// Puts the youngest live request back into the queue. It will repeat its work, with the same bits.
    fn preempt_youngest(&mut self) {
        let youngest = (0..self.live.len()).max_by_key(|&at| self.live[at].arrival);
        let Some(at) = youngest else { return };
        tracing::debug!(
            arrival = self.live[at].arrival,
            "memory is short: a request goes back into the queue"
        );
        self.sessions.release(&mut self.live[at]);
        self.waiting.push_front(self.live.swap_remove(at));
        self.memory_short = true;
        self.live.iter_mut().for_each(|task| task.stalled = None);
    }

    /// Ends the live request at that place: frees its sequence, then tells.
    fn end(&mut self, at: usize, end: End) {
        let usage = self.live[at].usage();
        self.sessions.release(&mut self.live[at]);
        let task = self.live.swap_remove(at);
        self.memory_short = false;
        self.live.iter_mut().for_each(|task| task.stalled = None);
        let seconds = usage.prefill_seconds + usage.decode_seconds;
        self.shared
            .ended(matches!(end, End::Finished(_)).then(|| std::time::Duration::from_secs_f64(seconds)));
        self.publish();
        match end {
            End::Finished(reason) => task.events.send(Event::Finished { reason, usage }),
            End::Failed(sentence) => task.events.send(Event::Failed(sentence)),
            End::Cancelled => {}
        }
    }

    fn publish(&self) {
        self.shared.publish(self.live.len(), self.sessions.state_bytes());
    }
}

/// Drops a model. One that panicked is not called again, and may panic again even while it is dropped.
fn free(mut sessions: Sessions, mut live: Vec<Task>, sound: bool) {
    let freed = catch_unwind(AssertUnwindSafe(move || {
        if sound {
            live.iter_mut().for_each(|task| sessions.release(task));
            sessions.clear();
        }
        drop(sessions);
    }));
    if let Err(panic) = freed {
        tracing::error!("freeing the model failed: {}", message(&*panic));
    }
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
