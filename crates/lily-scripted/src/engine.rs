//! An engine that says what its script says, token by token, under the rules of a real one: context, token limit, end
//! tokens, queue and cancelling.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lily_protocol::{
    Engine, Event, EventSender, FinishReason, Generation, GenerationRequest, Limits, Load, Logprobs,
    SubmitError, Token, Usage, generation,
};
use lily_text::TextModel;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::debug::{Record, State};
use crate::script::{Finish, Line, Piece, Script, Step, bytes_of};

/// How often a waiting answer looks whether its reader went away.
const CANCEL_CHECK: Duration = Duration::from_millis(5);
/// Records kept for `/debug/requests`.
const MOST_RECORDS: usize = 10_000;

/// The limits of a scripted engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Tokens of prompt and answer together.
    pub context: usize,
    /// Answers running at one moment.
    pub parallel: usize,
    /// Requests that may wait besides.
    pub queue: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { context: 262_144, parallel: 256, queue: 256 }
    }
}

/// See the module. Cheap to clone; clones are one engine.
#[derive(Clone)]
pub struct ScriptedEngine(Arc<Inner>);

struct Inner {
    script: Script,
    text: Arc<TextModel>,
    options: EngineOptions,
    runtime: Handle,
    places: Semaphore,
    running: AtomicUsize,
    waiting: AtomicUsize,
    asked: Mutex<Asked>,
}

/// What was asked so far.
#[derive(Default)]
struct Asked {
    /// Requests that took a line without `match`.
    turn: usize,
    /// Requests of all kinds.
    count: usize,
    records: Vec<Record>,
}

/// One answer, ready to be said.
struct Play {
    request: GenerationRequest,
    sender: EventSender,
    index: usize,
    steps: Vec<Said>,
    finish: Finish,
    cached: usize,
    submitted: Instant,
}

/// One step, in tokens.
enum Said {
    Tokens(Vec<u32>),
    /// A marker that puts the stream into the state that the line asks for; not counted.
    Uncounted(u32),
    Silence(Duration),
}

impl std::fmt::Debug for ScriptedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedEngine").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl ScriptedEngine {
    /// Speaks on the Tokio runtime that this is called in.
    pub fn new(script: Script, text: Arc<TextModel>, options: EngineOptions) -> Self {
        ScriptedEngine(Arc::new(Inner {
            script,
            text,
            options,
            runtime: Handle::current(),
            places: Semaphore::new(options.parallel.clamp(1, Semaphore::MAX_PERMITS)),
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            asked: Mutex::default(),
        }))
    }

    /// The requests so far, oldest first.
    pub fn records(&self) -> Vec<Record> {
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner).records.clone()
    }
}

impl Engine for ScriptedEngine {
    fn limits(&self) -> Limits {
        let context = self.0.options.context;
        Limits { context, model_context: context, vocabulary: self.0.text.tokenizer().size() }
    }

    fn load(&self) -> Load {
        Load {
            running: self.0.running.load(Ordering::Relaxed),
            waiting: self.0.waiting.load(Ordering::Relaxed),
            state_bytes: 0,
            asleep: false,
        }
    }

    fn submit(&self, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let inner = &self.0;
        inner.check(&request)?;
        let (sender, reader) = generation();
        let play = inner.prepare(request, sender)?;
        let inner = inner.clone();
        self.0.runtime.spawn(async move { inner.run(play).await });
        Ok(reader)
    }
}

impl Inner {
    fn check(&self, request: &GenerationRequest) -> Result<(), SubmitError> {
        let (size, context) = (self.text.tokenizer().size(), self.options.context);
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= size) {
            return Err(SubmitError::UnknownToken { id, size });
        }
        if request.prompt.len() >= context {
            return Err(SubmitError::ContextExceeded { prompt: request.prompt.len(), context });
        }
        Ok(())
    }

    /// Takes a place in the queue, chooses the line, and notes who asked.
    fn prepare(&self, request: GenerationRequest, sender: EventSender) -> Result<Play, SubmitError> {
        let prompt = match &request.text {
            Some(text) => text.to_string(),
            None => self.text.tokenizer().decode(&request.prompt, false),
        };
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (running, waiting) = (self.running.load(Ordering::Relaxed), self.waiting.load(Ordering::Relaxed));
        if running + waiting >= self.options.parallel + self.options.queue {
            return Err(SubmitError::QueueFull { waiting, retry_after_seconds: 1 });
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut turn = asked.turn;
        let chosen = self.script.line(&prompt, &mut turn);
        asked.turn = turn;
        let index = asked.count;
        asked.count += 1;
        let (steps, finish, cached) = match chosen {
            Some((_, line)) => {
                (self.steps(line, &prompt), line.finish, line.cached.min(request.prompt.len()))
            }
            None => (Vec::new(), Finish::Error, 0),
        };
        let line = chosen.map(|(at, _)| at + 1);
        asked.records.push(Record::new(index, prompt, line, &request));
        if asked.records.len() > MOST_RECORDS {
            asked.records.remove(0);
        }
        Ok(Play { request, sender, index, steps, finish, cached, submitted: Instant::now() })
    }

    /// A line in tokens.
    fn steps(&self, line: &Line, prompt: &str) -> Vec<Said> {
        let tokenizer = self.text.tokenizer();
        let mut steps: Vec<Said> = line
            .pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => Said::Tokens(tokenizer.encode_marked(text)),
                Piece::Other(Step::Id(id)) => Said::Tokens(vec![*id]),
                Piece::Other(Step::Bytes(hex)) => {
                    let bytes = bytes_of(hex).unwrap_or_default();
                    Said::Tokens(bytes.into_iter().filter_map(|byte| tokenizer.byte_token(byte)).collect())
                }
                Piece::Other(Step::SleepMs(time)) => Said::Silence(Duration::from_millis(*time)),
            })
            .collect();
        let (open, close) = (tokenizer.token_id("<think>"), tokenizer.token_id("</think>"));
        let closes =
            |said: &Said| matches!(said, Said::Tokens(ids) if ids.iter().any(|&id| Some(id) == close));
        let inside = prompt.trim_end().ends_with("<think>");
        let wanted = line.thinking.unwrap_or_else(|| inside && steps.iter().any(closes));
        let marker = match (inside, wanted) {
            (true, false) => close,
            (false, true) => open,
            _ => None,
        };
        if let Some(marker) = marker {
            steps.insert(0, Said::Uncounted(marker));
        }
        steps
    }

    async fn run(&self, play: Play) {
        let place = tokio::select! {
            place = self.places.acquire() => place,
            () = reader_left(&play.sender) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.note(play.index, |record| record.state = State::Cancelled);
                return;
            }
        };
        // The order keeps the sum of both at least as high as it is.
        self.running.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let state = tokio::select! {
            biased;
            () = reader_left(&play.sender) => State::Cancelled,
            state = self.say(&play) => state,
        };
        self.note(play.index, |record| record.state = state);
        self.running.fetch_sub(1, Ordering::Relaxed);
        drop(place);
    }

    async fn say(&self, play: &Play) -> State {
        let Play { request, sender, .. } = play;
        let total = request.prompt.len();
        let room = self.options.context - total;
        let limit = request.max_tokens.unwrap_or(room).min(room);
        let started = Instant::now();
        for done in [play.cached, total] {
            sender.send(Event::Prefill { done, cached: play.cached, total });
        }
        if request.prompt_logprobs.is_some() {
            let known = |&id: &u32| self.token(id, request.prompt_logprobs).logprobs;
            let mut known: Vec<_> = request.prompt.iter().map(known).collect();
            known[0] = None;
            sender.send(Event::Prompt(known));
        }
        let ends = self.text.end_tokens();
        let mut said = 0;
        let mut reason = None;
        for step in &play.steps {
            match step {
                Said::Silence(time) => tokio::time::sleep(*time).await,
                Said::Uncounted(id) => sender.send(Event::Tokens(vec![self.token(*id, request.logprobs)])),
                Said::Tokens(ids) => {
                    let end = ids.iter().position(|id| ends.contains(id) && !request.ignore_end);
                    let ids = &ids[..end.unwrap_or(ids.len()).min(limit - said)];
                    said += ids.len();
                    if !ids.is_empty() {
                        let tokens = ids.iter().map(|&id| self.token(id, request.logprobs)).collect();
                        sender.send(Event::Tokens(tokens));
                        self.note(play.index, |record| record.tokens_sent = said);
                    }
                    if said >= limit {
                        reason = Some(FinishReason::Length);
                    } else if end.is_some() {
                        reason = Some(FinishReason::Stop);
                    }
                }
            }
            if reason.is_some() {
                break;
            }
        }
        let reason = match (reason, play.finish) {
            (Some(reason), _) => reason,
            (None, Finish::Stop) => FinishReason::Stop,
            (None, Finish::Length) => FinishReason::Length,
            (None, Finish::Error) => {
                let message = match play.steps.is_empty() {
                    true => "no line of the script fits this request, or the line fails at once",
                    false => "the script says that this answer fails",
                };
                sender.send(Event::Failed(message.into()));
                return State::Failed;
            }
        };
        let end_token = usize::from(reason == FinishReason::Stop);
        let usage = Usage {
            prompt_tokens: total,
            cached_tokens: play.cached,
            completion_tokens: said + end_token,
            queue_seconds: (started - play.submitted).as_secs_f64(),
            prefill_seconds: 0.0,
            decode_seconds: started.elapsed().as_secs_f64(),
        };
        sender.send(Event::Finished { reason, usage });
        State::Finished
    }

    /// Made-up log probabilities, the same for the same token: the chosen one first, its neighbours behind it.
    fn token(&self, id: u32, logprobs: Option<usize>) -> Token {
        const CHOSEN: f32 = -0.125;
        let size = self.text.tokenizer().size() as u32;
        let logprobs = logprobs.map(|count| Logprobs {
            chosen: CHOSEN,
            top: (0..count as u32)
                .map(|n| (id.wrapping_add(n) % size.max(1), CHOSEN - 2.0 * n as f32))
                .collect(),
        });
        Token { id, logprobs }
    }

    fn note(&self, index: usize, change: impl FnOnce(&mut Record)) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let first = asked.records.first().map_or(0, |record| record.index);
        if let Some(record) = index.checked_sub(first).and_then(|at| asked.records.get_mut(at)) {
            change(record);
        }
    }
}

/// Ends when the reader of these events is gone.
async fn reader_left(sender: &EventSender) {
    while !sender.cancelled() {
        tokio::time::sleep(CANCEL_CHECK).await;
    }
}
