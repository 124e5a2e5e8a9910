//! Runs a model on a device: builds the plans, keeps them by shape, and keeps the books of sequences.

use std::collections::HashMap;
use std::sync::Arc;

mod choosing;

use self::choosing::Entries;
use crate::device::{Batch, Device, Room, StatePart, Steps};
use crate::plan::{self, DecodeShape, Plan, Profile, Switch, Switches, Tail, Target};
use crate::{
    ChoosingRow, Chosen, DeviceError, Forward, Geometry, LogitRows, SequenceId, SnapshotId, Weights,
};

/// Contexts are rounded up to a power of two of at least this many tokens, so that a plan serves many steps.
const SMALLEST_BUCKET: usize = 256;

/// The most plans kept. Prefill plans depend on the number of rows, so a server sees many; one is cheap to make again.
const PLANS_KEPT: usize = 64;

/// Limits of a [`Runner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerOptions {
    /// Tokens a sequence may hold.
    pub context: usize,
    /// The most tokens of one prefill call; the arena grows with it.
    pub max_chunk: usize,
    /// The most rows of one decode call.
    pub max_decode_rows: usize,
}

/// A model on a device.
pub struct Runner<D> {
    geometry: Geometry,
    weights: Weights,
    profile: Profile,
    device: D,
    options: RunnerOptions,
    plans: HashMap<PlanKey, Arc<Plan>>,
    lengths: HashMap<SequenceId, usize>,
    snapshots: HashMap<SnapshotId, usize>,
    /// Steps that choose their tokens.
    steps: Option<Steps>,
    /// What the device knows of the past of sequences.
    entries: Entries,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PlanKey {
    Prefill { rows: usize, context: usize, logits: LogitRows, switches: Switches },
    Decode { slots: usize, context: usize, tail: Tail, switches: Switches },
}

impl<D: Device> Runner<D> {
    /// A runner for a model whose tensors `device` holds; on GPUs the weights are those of [`Weights::packed`].
    pub fn new(geometry: Geometry, weights: Weights, device: D, options: RunnerOptions) -> Self {
        let profile = device.profile().clone();
        let (plans, lengths, snapshots) = (HashMap::new(), HashMap::new(), HashMap::new());
        let entries = Entries::new(options.max_decode_rows);
        let steps = None;
        Runner { geometry, weights, profile, device, options, plans, lengths, snapshots, steps, entries }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The mechanisms that plans are built with from now on, in place of the device's own: to measure what one is worth.
    /// Sequences and snapshots stay, since states and caches look the same with any.
    pub fn use_switches(&mut self, switches: Switches) {
        self.profile.switches = switches;
    }

    /// A copy of a part of a sequence's recurrent state.
    pub fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        self.device.state(sequence, part)
    }

    fn plan(&mut self, key: PlanKey) -> Result<Arc<Plan>, DeviceError> {
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        let target = Target { geometry: &self.geometry, weights: &self.weights, profile: &self.profile };
        let plan = match key {
            PlanKey::Prefill { rows, context, logits, .. } => plan::prefill(target, rows, context, logits),
            PlanKey::Decode { slots, context, tail, .. } => {
                plan::decode(target, DecodeShape { tail, ..DecodeShape::logits(slots, context) })
            }
        };
        let plan = Arc::new(plan.map_err(|e| DeviceError::Failed(e.to_string()))?);
        if self.plans.len() >= PLANS_KEPT {
            self.plans.clear();
        }
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn known_length(&self, sequence: SequenceId) -> Result<usize, DeviceError> {
        let length = self.lengths.get(&sequence).copied();
        length.ok_or_else(|| DeviceError::Unknown(format!("no sequence {sequence:?}")))
    }

    /// The lengths of sequences, after making sure that `more` tokens fit each: all of them, or none gets room.
    fn reserve(&mut self, sequences: &[SequenceId], more: usize) -> Result<Vec<usize>, DeviceError> {
        let context = self.options.context;
        let mut lengths = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let length = self.known_length(*sequence)?;
            if length + more > context {
                return Err(DeviceError::ContextFull { length, more, context });
            }
            lengths.push(length);
        }
        let room = |(sequence, from): (&SequenceId, &usize)| Room {
            sequence: *sequence,
            from: *from,
            to: from + more,
        };
        let rooms: Vec<Room> = sequences.iter().zip(&lengths).map(room).collect();
        self.device.reserve(&rooms)?;
        Ok(lengths)
    }

    fn bucket(&self, tokens: usize) -> usize {
        tokens.next_power_of_two().max(SMALLEST_BUCKET).min(self.options.context)
    }

    /// What every step needs: some rows, of different sequences, of tokens that exist, and nothing under way.
    fn check_rows(&self, sequences: &[SequenceId], tokens: &[u32]) -> Result<(), DeviceError> {
        if sequences.is_empty() || sequences.len() > self.options.max_decode_rows {
            let (n, max) = (sequences.len(), self.options.max_decode_rows);
            return Err(DeviceError::Unknown(format!("a decode step has 1 to {max} rows, not {n}")));
        }
        if (1..sequences.len()).any(|i| sequences[..i].contains(&sequences[i])) {
            return Err(DeviceError::Unknown("a decode step has one row a sequence".into()));
        }
        self.not_under_way()?;
        self.check_tokens(tokens)
    }

    /// Every id must name a row of the embedding, or the device would read past it.
    fn check_tokens(&self, tokens: &[u32]) -> Result<(), DeviceError> {
        match tokens.iter().find(|t| **t as usize >= self.geometry.vocab) {
            Some(t) => Err(DeviceError::Unknown(format!(
                "token id {t} is not below vocab_size {}",
                self.geometry.vocab
            ))),
            None => Ok(()),
        }
    }
}

impl<D: Device> Forward for Runner<D> {
    fn vocab(&self) -> usize {
        self.geometry.vocab
    }

    fn max_chunk(&self) -> usize {
        self.options.max_chunk
    }

    fn max_decode_rows(&self) -> usize {
        self.options.max_decode_rows
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        let sequence = self.device.open()?;
        self.lengths.insert(sequence, 0);
        Ok(sequence)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.give_up_steps(sequence);
        self.entries.forget(sequence);
        self.lengths.remove(&sequence);
        self.device.close(sequence);
    }

    fn length(&self, sequence: SequenceId) -> usize {
        self.lengths.get(&sequence).copied().unwrap_or(0)
    }

    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, DeviceError> {
        self.not_under_way()?;
        let length = self.known_length(sequence)?;
        let snapshot = self.device.snapshot(sequence, length)?;
        self.snapshots.insert(snapshot, length);
        Ok(snapshot)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        let length = *self
            .snapshots
            .get(&snapshot)
            .ok_or_else(|| DeviceError::Unknown(format!("no snapshot {snapshot:?}")))?;
        let sequence = self.device.restore(snapshot)?;
        self.lengths.insert(sequence, length);
        Ok(sequence)
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        self.snapshots.remove(&snapshot);
        self.device.discard(snapshot);
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        self.device.snapshot_bytes(snapshot)
    }

    fn state_bytes(&self) -> usize {
        self.device.state_bytes()
    }

    fn make_up(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        self.not_under_way()?;
        let length = self.known_length(sequence)?;
        if length > 0 {
            return Err(DeviceError::Unknown(format!(
                "the sequence holds {length} tokens, and must be empty"
            )));
        }
        self.reserve(&[sequence], tokens)?;
        self.device.make_up(sequence, tokens)?;
        self.lengths.insert(sequence, tokens);
        Ok(())
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        logits: LogitRows,
    ) -> Result<(), DeviceError> {
        if tokens.is_empty() || tokens.len() > self.options.max_chunk {
            let (n, max) = (tokens.len(), self.options.max_chunk);
            return Err(DeviceError::Unknown(format!("a prefill chunk has 1 to {max} tokens, not {n}")));
        }
        self.not_under_way()?;
        self.check_tokens(tokens)?;
        let length = self.reserve(&[sequence], tokens.len())?[0];
        let context = self.bucket(length + tokens.len());
        let switches = self.profile.switches;
        let plan = self.plan(PlanKey::Prefill { rows: tokens.len(), context, logits, switches })?;
        let positions: Vec<u32> = (length..length + tokens.len()).map(|p| p as u32).collect();
        self.device.run(&plan, &Batch { sequences: &[sequence], tokens, positions: &positions })?;
        self.lengths.insert(sequence, length + tokens.len());
        Ok(())
    }

    fn decode(&mut self, rows: &[(SequenceId, u32)]) -> Result<(), DeviceError> {
        let sequences: Vec<SequenceId> = rows.iter().map(|r| r.0).collect();
        let tokens: Vec<u32> = rows.iter().map(|r| r.1).collect();
        self.check_rows(&sequences, &tokens)?;
        let positions: Vec<u32> = self.reserve(&sequences, 1)?.into_iter().map(|p| p as u32).collect();
        let longest = positions.iter().max().map_or(0, |p| *p as usize);
        let (context, switches) = (self.bucket(longest + 1), self.profile.switches);
        let plan = self.plan(PlanKey::Decode { slots: rows.len(), context, tail: Tail::Logits, switches })?;
        self.device.run(&plan, &Batch { sequences: &sequences, tokens: &tokens, positions: &positions })?;
        for (sequence, position) in sequences.iter().zip(&positions) {
            self.lengths.insert(*sequence, *position as usize + 1);
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.device.logits(row)
    }

    fn chooses(&self) -> bool {
        self.device.chooses() && self.profile.has(Switch::TokenHandoff)
    }

    fn begin(&mut self, rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
        self.begin_steps(rows)
    }

    fn ahead(&mut self) -> Result<bool, DeviceError> {
        self.submit_step()
    }

    fn under_way(&self) -> usize {
        self.steps.as_ref().map_or(0, Steps::under_way)
    }

    fn take(&mut self) -> Result<Vec<Chosen>, DeviceError> {
        self.take_step()
    }
}
