//! Sequences and snapshots of the model, under a memory budget.
//!
//! Between the worker, which knows requests, and [`Forward`], which knows neither prompts nor caches: opening a task's
//! sequence from the longest cached prefix, prefilling it piece by piece with snapshots on the way, and making room
//! (the cache gives way first) when the device has none.

use lily_model::{Choosing, ChoosingRow, Chosen, DeviceError, Forward, LogitRows, SequenceId, SnapshotId};

use crate::keep::KeepPolicy;
use crate::prefix_cache::PrefixCache;
use crate::task::Task;

/// Tokens of an answer that admission reserves memory for. A guess on purpose: most answers have no stated limit, and
/// reserving the whole context for each would serve one at a time. Too low a guess costs a preemption, never a failure.
const ANSWER_HEADROOM_TOKENS: usize = 256;

/// What the device's memory was seen to be used for.
#[derive(Debug, Default)]
struct Meter {
    /// Of opening a sequence.
    open_bytes: usize,
    /// Of taking a snapshot.
    snapshot_bytes: usize,
    /// Of prefilling, with the tokens it was for.
    kv_bytes: usize,
    kv_tokens: usize,
}

impl Meter {
    fn bytes_per_token(&self) -> usize {
        self.kv_bytes.div_ceil(self.kv_tokens.max(1))
    }
}

/// The model and what is kept of its states.
pub(crate) struct Sessions {
    forward: Box<dyn Forward>,
    cache: PrefixCache,
    keep: KeepPolicy,
    chunk: usize,
    open: usize,
    meter: Meter,
    /// Why the device is gone.
    lost: Option<String>,
}

impl Sessions {
    pub(crate) fn new(forward: Box<dyn Forward>, chunk: usize, cache_memory: usize) -> Self {
        let cache = PrefixCache::new(cache_memory);
        Sessions {
            forward,
            cache,
            keep: KeepPolicy::DEFAULT,
            chunk,
            open: 0,
            meter: Meter::default(),
            lost: None,
        }
    }

    /// Why the device is gone, where one of the calls so far was told that it is.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Remembers that a device is gone, whatever becomes of the error.
    fn noticed<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(DeviceError::Lost(why)) = &result {
            self.lost.get_or_insert_with(|| why.clone());
        }
        result
    }

    /// Bytes of all sequences and snapshots.
    pub(crate) fn state_bytes(&self) -> usize {
        self.forward.state_bytes()
    }

    /// Bytes that live sequences hold and the cache does not.
    pub(crate) fn live_bytes(&self) -> usize {
        self.state_bytes().saturating_sub(self.cache.device_bytes())
    }

    /// An estimate of what a task will need, from what earlier ones needed; 0 before the first.
    pub(crate) fn need_bytes(&self, task: &Task) -> usize {
        let tokens = task.prompt.len() + task.budget.min(task.generated.len() + ANSWER_HEADROOM_TOKENS);
        self.meter.open_bytes + tokens * self.meter.bytes_per_token()
    }

    /// Rows that one decode takes.
    pub(crate) fn max_rows(&self) -> usize {
        self.forward.max_decode_rows().max(1)
    }

    /// Opens the task's sequence, from the longest cached prefix of its prompt if there is one.
    pub(crate) fn attach(&mut self, task: &mut Task) -> Result<(), DeviceError> {
        self.cache.tick();
        loop {
            let before = self.state_bytes();
            let hit = self.cache.find(&task.prompt, &task.cuts);
            let opened = match hit {
                Some(hit) => self.forward.restore(hit.snapshot),
                None => self.forward.open(),
            };
            let opened = self.noticed(opened);
            match (opened, hit) {
                (Ok(sequence), hit) => {
                    self.open += 1;
                    let grown = self.state_bytes().saturating_sub(before);
                    self.meter.open_bytes = self.meter.open_bytes.max(grown);
                    if let Some(hit) = hit {
                        self.cache.touch(hit.snapshot);
                    }
                    task.attach(sequence, hit.map_or(0, |hit| hit.length));
                    return Ok(());
                }
                (Err(error @ DeviceError::OutOfMemory { .. }), _) => {
                    if !self.evict() {
                        return Err(error);
                    }
                }
                // A snapshot that cannot be restored is of no use to anyone; the prompt is computed instead.
                (Err(_), Some(hit)) => self.discard(hit.snapshot),
                (Err(error), None) => return Err(error),
            }
        }
    }

    /// Closes the task's sequence.
    pub(crate) fn release(&mut self, task: &mut Task) {
        if let Some(sequence) = task.detach() {
            self.close(sequence);
        }
    }

    /// Moves a task on to a longer cached prefix than it has computed, if another request has made one meanwhile: of
    /// several requests with a common start that arrive together, one computes it.
    pub(crate) fn catch_up(&mut self, task: &mut Task) {
        let Some(hit) = self.cache.find(&task.prompt, &task.cuts).filter(|hit| hit.length > task.done) else {
            return;
        };
        let restored = self.forward.restore(hit.snapshot);
        match self.noticed(restored) {
            Ok(sequence) => {
                if let Some(replaced) = task.detach() {
                    self.forward.close(replaced);
                }
                self.cache.touch(hit.snapshot);
                task.attach(sequence, hit.length);
            }
            // Its own sequence is as good, only slower.
            Err(DeviceError::OutOfMemory { .. }) => {}
            Err(_) => self.discard(hit.snapshot),
        }
    }

    /// Computes the next piece of the task's prompt; returns the number of its last rows that have logits: one if it ends the prompt,
    /// all if the prompt's log probabilities are wanted.
    pub(crate) fn prefill(&mut self, task: &mut Task) -> Result<usize, DeviceError> {
        let sequence = sequence_of(task)?;
        let stop = task.next_stop();
        let (rows, count) = match stop == task.prompt.len() {
            _ if task.scores.is_some() => (LogitRows::All, stop - task.done),
            true => (LogitRows::Last, 1),
            false => (LogitRows::None, 0),
        };
        loop {
            let before = self.state_bytes();
            let computed = self.forward.prefill(sequence, &task.prompt[task.done..stop], rows);
            match self.noticed(computed) {
                Ok(()) => {
                    self.meter.kv_bytes += self.state_bytes().saturating_sub(before);
                    self.meter.kv_tokens += stop - task.done;
                    self.cache.set_bytes_per_token(self.meter.bytes_per_token());
                    break;
                }
                Err(DeviceError::OutOfMemory { .. }) if self.evict() => {}
                Err(error) => return Err(error),
            }
        }
        task.move_to(stop);
        Ok(count)
    }

    /// Appends one token to each sequence and makes the logits of each row, in order.
    pub(crate) fn decode(&mut self, rows: &[(SequenceId, u32)]) -> Result<(), DeviceError> {
        loop {
            let done = self.forward.decode(rows);
            match self.noticed(done) {
                Err(DeviceError::OutOfMemory { .. }) if self.evict() => {}
                done => return done,
            }
        }
    }

    /// Whether the device chooses tokens at all.
    pub(crate) fn chooses(&self) -> bool {
        self.forward.chooses()
    }

    /// Whether tokens can be chosen so on the device.
    pub(crate) fn can_choose(&self, choosing: &Choosing) -> bool {
        self.forward.can_choose(choosing)
    }

    /// Begins steps that choose their tokens on the device, and submits the first.
    pub(crate) fn begin(&mut self, rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
        loop {
            let done = self.forward.begin(rows);
            match self.noticed(done) {
                Err(DeviceError::OutOfMemory { .. }) if self.evict() => {}
                done => return done,
            }
        }
    }

    /// Submits one more of them while one is under way, if there is room.
    pub(crate) fn ahead(&mut self) -> Result<bool, DeviceError> {
        let submitted = self.forward.ahead();
        self.noticed(submitted)
    }

    /// Steps under way.
    pub(crate) fn under_way(&self) -> usize {
        self.forward.under_way()
    }

    /// Waits for the oldest of them: what it chose for each row.
    pub(crate) fn take(&mut self) -> Result<Vec<Chosen>, DeviceError> {
        let taken = self.forward.take();
        self.noticed(taken)
    }

    /// Logits of a row of the last prefill or decode.
    pub(crate) fn logits(&self, row: usize) -> &[f32] {
        self.forward.logits(row)
    }

    /// Keeps a snapshot of where the task stands, if that is a cut worth it and the budget allows. Must not come
    /// between a prefill and the use of its logits: they are valid until the next call.
    pub(crate) fn keep(&mut self, task: &Task) {
        let (Some(cut), Some(sequence)) = (task.cut_here(), task.sequence) else { return };
        let (budget, size) = (self.cache.budget(), self.meter.snapshot_bytes);
        if size > budget || !self.cache.enabled() {
            return;
        }
        let most = (budget / self.keep.share.max(1) / size.max(1)).max(1);
        let wanted = self.keep.positions(&task.cuts, self.chunk, most).contains(&cut.position);
        if !wanted || self.cache.contains(&task.prompt, &task.cuts, cut) {
            return;
        }
        while let Some(victim) = self.cache.evict_beyond(size) {
            self.forward.discard(victim);
        }
        // Where the device has no room, live sequences need it more than the cache does.
        let taken = self.forward.snapshot(sequence);
        let Ok(snapshot) = self.noticed(taken) else { return };
        let copied = self.forward.snapshot_bytes(snapshot);
        self.meter.snapshot_bytes = self.meter.snapshot_bytes.max(copied);
        if let Err(unwanted) = self.cache.insert(&task.prompt, &task.cuts, cut, snapshot, copied) {
            self.forward.discard(unwanted);
        }
        while let Some(victim) = self.cache.evict_beyond(0) {
            self.forward.discard(victim);
        }
    }

    /// Evicts one snapshot; false if there was none.
    pub(crate) fn evict(&mut self) -> bool {
        let victim = self.cache.evict();
        if let Some(snapshot) = victim {
            self.forward.discard(snapshot);
        }
        victim.is_some()
    }

    /// Frees the whole cache.
    pub(crate) fn clear(&mut self) {
        while self.evict() {}
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        self.cache.remove(snapshot);
        self.forward.discard(snapshot);
    }

    fn close(&mut self, sequence: SequenceId) {
        self.forward.close(sequence);
        self.open = self.open.saturating_sub(1);
        // What the tree counts per token is an estimate; with no sequence open the device tells the truth.
        while self.open == 0 && self.cache.snapshots() > 0 && self.state_bytes() > self.cache.budget() {
            self.evict();
        }
    }
}

/// The sequence of a task that is live.
fn sequence_of(task: &Task) -> Result<SequenceId, DeviceError> {
    task.sequence.ok_or_else(|| DeviceError::Unknown("the request has no live sequence".into()))
}
