//! A model whose logits are a hash of its sequence's tokens, of every border between two calls and of whether a token
//! came through prefill or decode. A state restored at another place than a cut, a piece cut elsewhere or a repeated
//! token taken the wrong way changes everything that follows. It has pages, copies, a memory limit, faults, and a gate.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lily_engine::{Sampler, SamplerError, Scratch};
use lily_model::{ChoosingRow, Chosen, DeviceError, Forward, LogitRows, SequenceId, SnapshotId};
use lily_protocol::Sampling;

pub(crate) const VOCABULARY: usize = 100;
/// Ends an answer.
pub(crate) const END: u32 = 0;
pub(crate) const TURN_END: u32 = 1;
pub(crate) const HEADER: [u32; 3] = [2, 3, 4];
pub(crate) const THINK: u32 = 5;
/// Faults that a prompt can ask for.
pub(crate) const FAIL: u32 = 90;
pub(crate) const PANIC: u32 = 91;
pub(crate) const NAN: u32 = 92;
/// The device is gone from here on.
pub(crate) const LOSE: u32 = 93;
pub(crate) const CHUNK: usize = 16;
pub(crate) const CONTEXT: usize = 1024;
pub(crate) const ROWS: usize = 3;

/// Tokens a page, bytes a page, bytes of a copied state.
pub(crate) const PAGE_TOKENS: usize = 8;
pub(crate) const PAGE_BYTES: usize = 80;
pub(crate) const COPY_BYTES: usize = 1000;

/// A call that the engine made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// The first token of the whole sequence, and the number of tokens of this call.
    Prefill(u32, usize),
    /// Rows, of a step whose tokens anybody chooses.
    Decode(usize),
}

/// What tests see and set while the engine runs.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) sequences: AtomicUsize,
    pub(crate) snapshots: AtomicUsize,
    pub(crate) pages: AtomicUsize,
    /// Snapshots ever taken.
    pub(crate) taken: AtomicUsize,
    /// Bytes a snapshot takes that `snapshot_bytes` does not tell.
    pub(crate) overhead_bytes: AtomicUsize,
    /// 0 is no limit.
    pub(crate) limit_bytes: AtomicUsize,
    pub(crate) delay_micros: AtomicUsize,
    /// Decode calls and steps that fail from now on.
    pub(crate) failing_decodes: AtomicUsize,
    /// Calls of [`Fake::step`] and `decode` at which the device is lost.
    pub(crate) losing_steps: AtomicUsize,
    /// The device chooses no tokens.
    pub(crate) on_host: AtomicBool,
    /// Steps that were submitted while another one was under way, and those whose sequence was closed under them.
    pub(crate) ahead: AtomicUsize,
    pub(crate) given_up: AtomicUsize,
    /// Restores that fail from now on.
    pub(crate) failing_restores: AtomicUsize,
    /// Tokens less than [`CONTEXT`] that a sequence takes.
    pub(crate) context_less: AtomicUsize,
    /// Calls that may still pass; `None` lets all pass.
    gate: Mutex<Option<usize>>,
    opened: Condvar,
    /// Calls that have come to the gate.
    arrived: AtomicUsize,
}

impl Controls {
    /// Lets `more` further calls pass and stops the ones after them.
    pub(crate) fn allow(&self, more: usize) {
        *self.gate.lock().unwrap().get_or_insert(0) += more;
        self.opened.notify_all();
    }

    pub(crate) fn open_gate(&self) {
        *self.gate.lock().unwrap() = None;
        self.opened.notify_all();
    }

    /// Waits until that many calls in all have come to the gate.
    pub(crate) fn wait_for_arrivals(&self, calls: usize) {
        wait_until("calls at the gate", || self.arrived.load(SeqCst) >= calls);
    }

    fn pass_gate(&self) {
        self.arrived.fetch_add(1, SeqCst);
        let mut gate = self.gate.lock().unwrap();
        while *gate == Some(0) {
            gate = self.opened.wait(gate).unwrap();
        }
        if let Some(left) = gate.as_mut() {
            *left -= 1;
        }
        drop(gate);
        let micros = self.delay_micros.load(SeqCst) as u64;
        if micros > 0 {
            std::thread::sleep(Duration::from_micros(micros));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let copies = self.sequences.load(SeqCst) + self.snapshots.load(SeqCst);
        let overhead = self.snapshots.load(SeqCst) * self.overhead_bytes.load(SeqCst);
        overhead + copies * COPY_BYTES + self.pages.load(SeqCst) * PAGE_BYTES
    }

    pub(crate) fn prefilled_tokens(&self) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|call| if let Call::Prefill(_, n) = call { *n } else { 0 }).sum()
    }
}

/// Polls; a test that never gets there fails instead of hanging.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    panic!("waited 10 s for {what}");
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}

/// A test's hold on the controls. A test that fails with the gate closed must not leave the engine's thread there, for
/// which the engine's drop would wait for ever.
pub(crate) struct Handle(pub(crate) Arc<Controls>);

impl std::ops::Deref for Handle {
    type Target = Controls;

    fn deref(&self) -> &Controls {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.open_gate();
    }
}

/// A page of KV; counted while anyone holds it.
#[derive(Debug)]
struct Page(Arc<Controls>);

impl Drop for Page {
    fn drop(&mut self) {
        self.0.pages.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone, Debug)]
struct State {
    first: u32,
    length: usize,
    hash: u64,
    pages: Vec<Arc<Page>>,
}

/// One round of splitmix64 over both.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x632B_E59B_D9B4_E019);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

pub(crate) fn prefilled(hash: u64, tokens: &[u32]) -> u64 {
    mix(tokens.iter().fold(hash, |hash, token| mix(hash, u64::from(*token))), u64::MAX)
}

pub(crate) fn decoded(hash: u64, token: u32) -> u64 {
    mix(hash, u64::from(token) + (1 << 40))
}

/// Logits from -4 to 4; padding that would win every draw.
pub(crate) fn logits(hash: u64) -> Vec<f32> {
    let real = (0..VOCABULARY as u64).map(|id| (mix(hash, id + (2 << 40)) % 8001) as f32 / 1000.0 - 4.0);
    real.chain([1e6, f32::NAN, f32::INFINITY]).collect()
}

pub(crate) struct Fake {
    controls: Arc<Controls>,
    sequences: HashMap<SequenceId, State>,
    snapshots: HashMap<SnapshotId, State>,
    next: u64,
    logits: Vec<Vec<f32>>,
    run: Option<Run>,
    /// The device is gone.
    is_lost: bool,
}

impl Fake {
    pub(crate) fn new(controls: Arc<Controls>) -> Self {
        Fake {
            controls,
            sequences: HashMap::new(),
            snapshots: HashMap::new(),
            next: 0,
            logits: Vec::new(),
            run: None,
            is_lost: false,
        }
    }

    /// Whether there is a device, which `losing` ends.
    fn there(&mut self, losing: bool) -> Result<(), DeviceError> {
        self.is_lost |= losing;
        if self.is_lost { Err(DeviceError::Lost("the fake was asked to".into())) } else { Ok(()) }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn room(&self, what: &'static str, need_bytes: usize) -> Result<(), DeviceError> {
        let limit = self.controls.limit_bytes.load(SeqCst);
        let left_bytes = limit.saturating_sub(self.controls.bytes());
        if limit > 0 && need_bytes > left_bytes {
            return Err(DeviceError::OutOfMemory { what, need_bytes, left_bytes });
        }
        Ok(())
    }

    /// New pages that `more` tokens need; a shared, half-full page is copied.
    fn pages_needed(state: &State, more: usize) -> (usize, usize) {
        let keep = state.length / PAGE_TOKENS;
        let partial = !state.length.is_multiple_of(PAGE_TOKENS);
        let own = partial && Arc::strong_count(&state.pages[keep]) == 1;
        let keep = keep + usize::from(own);
        (keep, (state.length + more).div_ceil(PAGE_TOKENS) - keep)
    }

    fn grow(&mut self, id: SequenceId, more: usize) -> Result<&mut State, DeviceError> {
        let state = self.sequences.get(&id).ok_or_else(|| DeviceError::Unknown(format!("{id:?}")))?;
        let context = CONTEXT - self.controls.context_less.load(SeqCst);
        if state.length + more > context {
            return Err(DeviceError::ContextFull { length: state.length, more, context });
        }
        let (keep, new) = Self::pages_needed(state, more);
        self.room("KV pages", new * PAGE_BYTES)?;
        let controls = self.controls.clone();
        let state = self.sequences.get_mut(&id).unwrap();
        state.pages.truncate(keep);
        for _ in 0..new {
            controls.pages.fetch_add(1, SeqCst);
            state.pages.push(Arc::new(Page(controls.clone())));
        }
        state.length += more;
        Ok(state)
    }
}

impl Forward for Fake {
    fn vocab(&self) -> usize {
        VOCABULARY + 3
    }

    fn max_chunk(&self) -> usize {
        2 * CHUNK
    }

    fn max_decode_rows(&self) -> usize {
        ROWS
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        self.there(false)?;
        self.room("a sequence", COPY_BYTES)?;
        let id = SequenceId(self.fresh());
        self.controls.sequences.fetch_add(1, SeqCst);
        self.sequences.insert(id, State { first: 0, length: 0, hash: 7, pages: Vec::new() });
        Ok(id)
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.run.as_ref().is_some_and(|run| !run.chosen.is_empty() && run.has(sequence)) {
            self.controls.given_up.fetch_add(1, SeqCst);
            self.run = None;
        }
        if self.sequences.remove(&sequence).is_some() {
            self.controls.sequences.fetch_sub(1, SeqCst);
        }
    }

    fn length(&self, sequence: SequenceId) -> usize {
        self.sequences[&sequence].length
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, DeviceError> {
        assert_eq!(self.under_way(), 0, "a snapshot between steps");
        self.room("a snapshot", COPY_BYTES)?;
        let id = SnapshotId(self.fresh());
        let state = self.sequences[&sequence].clone();
        self.controls.taken.fetch_add(1, SeqCst);
        self.controls.snapshots.fetch_add(1, SeqCst);
        self.snapshots.insert(id, state);
        Ok(id)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.there(false)?;
        if take_one(&self.controls.failing_restores) {
            return Err(DeviceError::Failed("a restore was asked to".into()));
        }
        let state =
            self.snapshots.get(&snapshot).ok_or_else(|| DeviceError::Unknown("no snapshot".into()))?.clone();
        self.room("a sequence", COPY_BYTES)?;
        let id = SequenceId(self.fresh());
        self.controls.sequences.fetch_add(1, SeqCst);
        self.sequences.insert(id, state);
        Ok(id)
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        if self.snapshots.remove(&snapshot).is_some() {
            self.controls.snapshots.fetch_sub(1, SeqCst);
        }
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        let Some(state) = self.snapshots.get(&snapshot) else { return 0 };
        let own = state.pages.iter().filter(|page| Arc::strong_count(page) == 1).count();
        COPY_BYTES + own * PAGE_BYTES
    }

    fn state_bytes(&self) -> usize {
        self.controls.bytes()
    }

    fn prefill(&mut self, sequence: SequenceId, tokens: &[u32], rows: LogitRows) -> Result<(), DeviceError> {
        assert!(!tokens.is_empty() && tokens.len() <= self.max_chunk());
        assert_eq!(self.under_way(), 0, "a prefill between steps");
        self.controls.pass_gate();
        let start = self.sequences.get(&sequence).map_or(0, |state| state.length);
        let state = self.grow(sequence, tokens.len())?;
        if start == 0 {
            state.first = tokens[0];
        }
        let before = state.hash;
        state.hash = prefilled(before, tokens);
        let (first, hash) = (state.first, state.hash);
        self.controls.calls.lock().unwrap().push(Call::Prefill(first, tokens.len()));
        self.there(tokens.contains(&LOSE))?;
        if tokens.contains(&FAIL) {
            return Err(DeviceError::Failed("the fake was asked to".into()));
        }
        assert!(!tokens.contains(&PANIC), "the fake was asked to panic");
        self.logits = match rows {
            LogitRows::None => Vec::new(),
            LogitRows::Last => vec![logits(hash)],
            LogitRows::All => (1..=tokens.len()).map(|n| logits(prefilled(before, &tokens[..n]))).collect(),
        };
        if tokens.contains(&NAN)
            && let Some(logits) = self.logits.last_mut()
        {
            logits[3] = f32::NAN;
        }
        Ok(())
    }

    fn decode(&mut self, rows: &[(SequenceId, u32)]) -> Result<(), DeviceError> {
        assert!(!rows.is_empty() && rows.len() <= ROWS);
        assert_eq!(self.under_way(), 0, "a decode between steps");
        self.controls.pass_gate();
        self.controls.calls.lock().unwrap().push(Call::Decode(rows.len()));
        let losing = take_one(&self.controls.losing_steps);
        self.there(losing)?;
        if take_one(&self.controls.failing_decodes) {
            return Err(DeviceError::Failed("a decode was asked to".into()));
        }
        self.room_for_each(rows.iter().map(|row| row.0))?;
        self.logits.clear();
        for &(id, token) in rows {
            let state = self.grow(id, 1)?;
            state.hash = decoded(state.hash, token);
            let hash = state.hash;
            self.logits.push(logits(hash));
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn chooses(&self) -> bool {
        !self.controls.on_host.load(SeqCst)
    }

    fn begin(&mut self, rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
        assert!(!rows.is_empty() && rows.len() <= ROWS);
        assert_eq!(self.under_way(), 0, "a run between steps");
        assert!(
            rows.iter().all(|row| self.can_choose(row.choosing) && row.output.last() == Some(&row.token))
        );
        self.room_for_each(rows.iter().map(|row| row.sequence))?;
        let lengths = rows.iter().map(|row| self.sequences[&row.sequence].length);
        let context = CONTEXT - self.controls.context_less.load(SeqCst);
        let room = |length: usize| (PAGE_TOKENS - length % PAGE_TOKENS).min(context - length);
        let left = lengths.map(room).min().unwrap();
        self.run = Some(Run { rows: rows.iter().map(RunRow::new).collect(), left, chosen: VecDeque::new() });
        self.step()
    }

    fn ahead(&mut self) -> Result<bool, DeviceError> {
        let Some(run) = &self.run else { return Ok(false) };
        if run.left == 0 || run.chosen.len() == 2 {
            return Ok(false);
        }
        self.controls.ahead.fetch_add(1, SeqCst);
        self.step().map(|()| true)
    }

    fn under_way(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.chosen.len())
    }

    fn take(&mut self) -> Result<Vec<Chosen>, DeviceError> {
        let chosen = self.run.as_mut().and_then(|run| run.chosen.pop_front());
        chosen.ok_or_else(|| DeviceError::Unknown("no step is under way".into()))
    }
}

/// Steps of the same rows that choose their tokens.
struct Run {
    rows: Vec<RunRow>,
    left: usize,
    chosen: VecDeque<Vec<Chosen>>,
}

impl Run {
    fn has(&self, sequence: SequenceId) -> bool {
        self.rows.iter().any(|row| row.sequence == sequence)
    }
}

struct RunRow {
    sequence: SequenceId,
    /// What the next step appends.
    token: u32,
    sampler: Sampler,
    ends: Vec<u32>,
    done: bool,
}

impl RunRow {
    fn new(row: &ChoosingRow<'_>) -> Self {
        let c = row.choosing;
        let sampling = Sampling {
            temperature: c.temperature,
            top_p: c.top_p,
            top_k: c.top_k,
            min_p: c.min_p,
            repetition_penalty: c.repetition,
            presence_penalty: c.presence,
            frequency_penalty: c.frequency,
            logit_bias: c.bias.clone(),
            seed: c.seed,
        };
        let mut sampler = Sampler::new(sampling, c.vocabulary, row.prompt, c.banned.clone()).unwrap();
        row.output.iter().for_each(|id| sampler.accept(*id));
        RunRow { sequence: row.sequence, token: row.token, sampler, ends: c.ends.clone(), done: false }
    }
}

impl Fake {
    /// Whether each has room for one more token; nothing may change where one has none.
    fn room_for_each(&self, ids: impl Iterator<Item = SequenceId>) -> Result<(), DeviceError> {
        let mut need = 0;
        let context = CONTEXT - self.controls.context_less.load(SeqCst);
        for id in ids {
            let state = self.sequences.get(&id).ok_or_else(|| DeviceError::Unknown(format!("{id:?}")))?;
            if state.length == context {
                return Err(DeviceError::ContextFull { length: context, more: 1, context });
            }
            need += Self::pages_needed(state, 1).1;
        }
        self.room("KV pages", need * PAGE_BYTES)
    }

    /// Computes a step when it is submitted; the engine learns of it when it takes it.
    fn step(&mut self) -> Result<(), DeviceError> {
        self.controls.pass_gate();
        let mut run = self.run.take().unwrap();
        self.controls.calls.lock().unwrap().push(Call::Decode(run.rows.len()));
        let losing = take_one(&self.controls.losing_steps);
        self.there(losing)?;
        if take_one(&self.controls.failing_decodes) {
            return Err(DeviceError::Failed("a decode was asked to".into()));
        }
        run.left -= 1;
        let mut chosen = Vec::new();
        for row in &mut run.rows {
            if row.done {
                chosen.push(Chosen::NoneLeft);
                continue;
            }
            let state = self.grow(row.sequence, 1)?;
            state.hash = decoded(state.hash, row.token);
            let (logits, scratch) = (logits(state.hash), &mut Scratch::default());
            chosen.push(match row.sampler.choose(&logits, scratch) {
                Ok(id) => {
                    row.token = id;
                    Chosen::Token(id)
                }
                Err(SamplerError::NothingLeft) => Chosen::NoneLeft,
                Err(_) => Chosen::NotFinite,
            });
            row.done = row.ends.contains(&row.token) || !matches!(chosen.last(), Some(Chosen::Token(_)));
        }
        run.chosen.push_back(chosen);
        self.run = Some(run);
        Ok(())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.controls.sequences.fetch_sub(self.sequences.len(), SeqCst);
        self.controls.snapshots.fetch_sub(self.snapshots.len(), SeqCst);
    }
}
