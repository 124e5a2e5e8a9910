//! The handle: checks of a request, the queue's bound, shutting down.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use lily_model::Forward;
use lily_protocol::{Engine, Event, Generation, GenerationRequest, Limits, Load, SubmitError, generation};

use crate::config::{EngineConfig, StartError};
use crate::cuts::CutRule;
use crate::renewal::{self, Renewal};
use crate::sampler::Sampler;
use crate::scores::Scores;
use crate::task::Task;

/// The longest wait that a refused client is told.
const MOST_RETRY_SECONDS: u64 = 120;

/// What the handle and the engine's thread both see.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The way in; `None` once nothing more is taken. Sending happens under the lock, so that no request can slip in
    /// behind a thread that has looked for the last time.
    sender: Mutex<Option<Sender<Task>>>,
    /// Requests taken and not yet ended.
    outstanding: AtomicUsize,
    /// Of these, being worked on.
    running: AtomicUsize,
    state_bytes: AtomicUsize,
    /// Drop all work instead of finishing it.
    abort: AtomicBool,
    /// There is no model until somebody asks.
    asleep: AtomicBool,
    arrivals: AtomicU64,
    /// How long a request is worked on, a moving average.
    service_millis: AtomicU64,
}

impl Shared {
    fn new(sender: Sender<Task>) -> Self {
        Shared {
            sender: Mutex::new(Some(sender)),
            outstanding: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            state_bytes: AtomicUsize::new(0),
            abort: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
            service_millis: AtomicU64::new(0),
        }
    }

    fn sender(&self) -> MutexGuard<'_, Option<Sender<Task>>> {
        // The guarded value is a channel's end and cannot be half changed.
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more requests; the thread sees its channel disconnected once it is empty.
    pub(crate) fn close(&self) {
        self.sender().take();
    }

    /// Whether all work is to be dropped.
    pub(crate) fn aborted(&self) -> bool {
        self.abort.load(SeqCst)
    }

    /// A request has ended, after that time of work if it ever started.
    pub(crate) fn ended(&self, service: Option<std::time::Duration>) {
        self.outstanding.fetch_sub(1, SeqCst);
        if let Some(service) = service {
            let millis = u64::try_from(service.as_millis()).unwrap_or(u64::MAX);
            let before = self.service_millis.load(SeqCst);
            // One eighth of the newest; the first one counts in full.
            let average = if before == 0 { millis } else { before - before / 8 + millis / 8 };
            self.service_millis.store(average, SeqCst);
        }
    }

    /// Tells whether the model was let go.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, SeqCst);
    }

    /// Tells how busy the thread is.
    pub(crate) fn publish(&self, running: usize, state_bytes: usize) {
        self.running.store(running, SeqCst);
        self.state_bytes.store(state_bytes, SeqCst);
    }

    fn waiting(&self) -> usize {
        self.outstanding.load(SeqCst).saturating_sub(self.running.load(SeqCst))
    }
}

/// An engine over a model on this machine. Put it into an [`Arc`] to share it; dropping it drops all work and ends its
/// thread.
///
/// A failure that the device reports ends the requests it concerns. A lost device ends those at work, and with a [`Renewal`] those that
/// wait are answered on the next one. A panic ends the engine: the state of a model that
/// panicked is unknown, and wrong answers are worse than none. All requests then fail with a sentence, and every
/// further one is refused with [`SubmitError::ShuttingDown`].
#[derive(Debug)]
pub struct LocalEngine {
    config: EngineConfig,
    rule: CutRule,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Starts an engine's thread, which owns the model until it ends.
pub fn start(config: EngineConfig, forward: Box<dyn Forward>) -> Result<LocalEngine, StartError> {
    start_with(config, forward, None)
}

/// The same; with `renewal`, the model is dropped when nobody asks for it or its device is lost, and made again for the next request.
pub fn start_with(
    config: EngineConfig,
    forward: Box<dyn Forward>,
    renewal: Option<Renewal>,
) -> Result<LocalEngine, StartError> {
    config.check(&*forward)?;
    let (sender, receiver): (_, Receiver<Task>) = channel();
    let shared = Arc::new(Shared::new(sender));
    let thread = {
        let (config, shared) = (config.clone(), shared.clone());
        let work = move || renewal::run(&config, forward, receiver, &shared, renewal);
        std::thread::Builder::new().name("lily-engine".into()).spawn(work)?
    };
    let rule = CutRule::new(config.chunk, config.cut_markers.clone());
    Ok(LocalEngine { config, rule, shared, thread: Mutex::new(Some(thread)) })
}

impl LocalEngine {
    /// Takes no more requests, then finishes (`drain`) or drops the ones it has, frees the cache and ends the thread;
    /// returns when that is done. While one caller drains, another may call with `drain` false to hurry it.
    pub fn shutdown(&self, drain: bool) {
        if !drain {
            self.shared.abort.store(true, SeqCst);
        }
        self.shared.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches panics of its work; one that escapes has nobody left to tell.
            let _ = thread.join();
        }
    }

    /// Whether requests are still taken: false after [`LocalEngine::shutdown`] began or the thread died.
    pub fn is_open(&self) -> bool {
        self.shared.sender().is_some()
    }

    /// Refuses what cannot be answered at all.
    fn check(&self, request: &GenerationRequest) -> Result<(), SubmitError> {
        let Limits { context, vocabulary: size, .. } = self.config.limits;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let biased = request.sampling.logit_bias.iter().map(|(id, _)| id);
        if let Some(&id) = request.prompt.iter().chain(biased).find(|id| **id as usize >= size) {
            return Err(SubmitError::UnknownToken { id, size });
        }
        if request.prompt.len() >= context {
            return Err(SubmitError::ContextExceeded { prompt: request.prompt.len(), context });
        }
        Ok(())
    }

    /// Claims a place for one more request.
    fn claim(&self) -> Result<(), SubmitError> {
        let places = self.config.parallel.saturating_add(self.config.queue);
        let claimed = self
            .shared
            .outstanding
            .fetch_update(SeqCst, SeqCst, |taken| (taken < places).then_some(taken + 1));
        claimed.map(|_| ()).map_err(|_| SubmitError::QueueFull {
            waiting: self.shared.waiting(),
            retry_after_seconds: self.retry_after_seconds(),
        })
    }

    /// A place is free when the next of the running requests ends.
    fn retry_after_seconds(&self) -> u64 {
        let millis = self.shared.service_millis.load(SeqCst) / self.config.parallel as u64;
        millis.div_ceil(1000).clamp(1, MOST_RETRY_SECONDS)
    }
}

impl Engine for LocalEngine {
    fn limits(&self) -> Limits {
        self.config.limits.clone()
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, SubmitError> {
        if !self.is_open() {
            return Err(SubmitError::ShuttingDown);
        }
        self.check(&request)?;
        let (events, generation) = generation();
        let banned = if request.ignore_end { self.config.end_tokens.clone() } else { Vec::new() };
        let vocabulary = self.config.limits.vocabulary;
        let sampler = match Sampler::new(request.sampling, vocabulary, &request.prompt, banned) {
            Ok(sampler) => sampler,
            Err(error) => {
                events.send(Event::Failed(error.to_string()));
                return Ok(generation);
            }
        };
        let scores = request.prompt_logprobs.map(|count| Scores::new(count, self.config.chunk));
        // Without cuts there is nothing to reuse and nothing to keep.
        let cuts = if scores.is_some() { Vec::new() } else { self.rule.cuts(&request.prompt) };
        let rest = self.config.limits.context - request.prompt.len();
        let budget = request.max_tokens.unwrap_or(rest).min(rest);
        let arrival = self.shared.arrivals.fetch_add(1, SeqCst);
        let mut task = Task::new(arrival, request.prompt, cuts, budget, request.logprobs, sampler, events);
        task.scores = scores;

        let sender = self.shared.sender();
        let sender = sender.as_ref().ok_or(SubmitError::ShuttingDown)?;
        self.claim()?;
        sender.send(task).map_err(|_| {
            self.shared.outstanding.fetch_sub(1, SeqCst);
            SubmitError::ShuttingDown
        })?;
        Ok(generation)
    }

    fn load(&self) -> Load {
        Load {
            running: self.shared.running.load(SeqCst),
            waiting: self.shared.waiting(),
            state_bytes: self.shared.state_bytes.load(SeqCst),
            asleep: self.shared.asleep.load(SeqCst),
        }
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.shutdown(false);
    }
}
