//! What a device has to offer so that a [`crate::Runner`] can run plans on it.

mod bind;
mod choices;
mod group;
mod layout;
mod made_up;
mod progress;
mod sequences;
mod step;
mod steps;
mod trace;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::plan::{Buffer, Launch, Plan, Profile};
use crate::{DeviceError, Geometry, Mapped, Model, SequenceId, SnapshotId, TensorId};

pub use bind::{Memory, Place, buffers, operands};
pub use choices::{Choices, Fresh};
pub use group::group;
pub use layout::{Layout, Piece, Spot};
pub use made_up::MadeUp;
pub use progress::{Progress, Watch};
pub use sequences::{LayerPools, Pool, Sequences};
pub use step::StepLayout;
pub use steps::{STEPS_UNDER_WAY, Steps, Taken, hand_over};
pub use trace::{Span, Trace, clock, launch_label, phase_name, stage_label};

/// Where a device finds the bytes of a tensor: the memory-mapped checkpoint.
pub trait TensorSource: Send + Sync {
    /// The tensor's bytes, at any alignment.
    fn bytes(&self, tensor: TensorId) -> &[u8];

    /// How many they are.
    fn len(&self, tensor: TensorId) -> usize {
        self.bytes(tensor).len()
    }

    /// Copies some of them, from byte `start` on.
    fn read(&self, tensor: TensorId, start: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes(tensor)[start..start + into.len()]);
    }

    /// Where its bytes are mapped, if they are those of a file.
    fn mapped(&self, _tensor: TensorId) -> Option<Mapped> {
        None
    }

    /// Nobody will read these bytes again soon: the memory that holds them may be had for something else.
    fn release(&self, _tensor: TensorId, _range: Range<usize>) {}
}

impl TensorSource for Model {
    fn bytes(&self, tensor: TensorId) -> &[u8] {
        self.checkpoint.bytes(tensor)
    }

    fn len(&self, tensor: TensorId) -> usize {
        self.checkpoint.info(tensor).range.len()
    }

    fn read(&self, tensor: TensorId, start: usize, into: &mut [u8]) {
        self.checkpoint.read(tensor, start, into);
    }

    fn mapped(&self, tensor: TensorId) -> Option<Mapped> {
        self.checkpoint.mapped(tensor)
    }

    fn release(&self, tensor: TensorId, range: Range<usize>) {
        self.checkpoint.release(tensor, range);
    }
}

/// The rows of one run of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The sequence of each slot.
    pub sequences: &'a [SequenceId],
    /// Token ids, `[slots * rows]`.
    pub tokens: &'a [u32],
    /// Their positions, `[slots * rows]`.
    pub positions: &'a [u32],
}

impl Batch<'_> {
    /// Whether these are rows of this plan; a device that runs others reads beyond its tables.
    pub fn check(&self, plan: &Plan, geometry: &Geometry) -> Result<(), DeviceError> {
        let total = plan.slots * plan.rows;
        let fits = self.sequences.len() == plan.slots
            && self.tokens.len() == total
            && self.positions.len() == total
            && self.tokens.iter().all(|t| (*t as usize) < geometry.vocab)
            && self.positions.iter().all(|p| (*p as usize) < plan.context);
        if fits { Ok(()) } else { Err(DeviceError::Unknown("the batch does not fit its plan".into())) }
    }
}

/// Whether a plan writes the recurrent states of a model with so many DeltaNet layers: of all of them, or of none.
pub fn moves_states(plan: &Plan, delta_layers: usize) -> Result<bool, DeviceError> {
    let mut written = BTreeSet::new();
    for (view, access) in plan.launches.iter().flat_map(Launch::accesses) {
        match view.buffer {
            Buffer::DeltaState { layer, .. } if access.writes() => written.insert((layer, false)),
            Buffer::ConvState { layer, .. } if access.writes() => written.insert((layer, true)),
            _ => false,
        };
    }
    match written.len() {
        0 => Ok(false),
        n if n == 2 * delta_layers => Ok(true),
        n => Err(DeviceError::Failed(format!(
            "the plan moves {n} recurrent states, and not those of all layers"
        ))),
    }
}

/// Tokens that a sequence is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The sequence.
    pub sequence: SequenceId,
    /// Tokens it holds.
    pub from: usize,
    /// Tokens it is to hold.
    pub to: usize,
}

/// A part of a sequence's recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// S of a Gated DeltaNet layer, `[value_heads, value_dim, key_dim]`.
    Delta {
        /// The layer.
        layer: usize,
    },
    /// The last raw qkv rows of a Gated DeltaNet layer, `[conv_taps - 1, channels]`.
    Conv {
        /// The layer.
        layer: usize,
    },
}

/// Executes plans and holds the state of sequences. Knows kernels and memory; not what a request or a session is.
pub trait Device: Send {
    /// One line for people: `CPU, 2 threads, AVX-512`.
    fn describe(&self) -> String;

    /// What plans for it are built by.
    fn profile(&self) -> &Profile;

    /// Opens an empty sequence.
    fn open(&mut self) -> Result<SequenceId, DeviceError>;

    /// Frees a sequence; unknown ids are ignored.
    fn close(&mut self, sequence: SequenceId);

    /// Freezes the state of a sequence that holds `length` tokens.
    fn snapshot(&mut self, sequence: SequenceId, length: usize) -> Result<SnapshotId, DeviceError>;

    /// Opens a sequence that continues from a snapshot.
    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError>;

    /// Frees a snapshot; unknown ids are ignored.
    fn discard(&mut self, snapshot: SnapshotId);

    /// Bytes that discarding this snapshot alone would free now.
    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize;

    /// Bytes of all sequences and snapshots.
    fn state_bytes(&self) -> usize;

    /// Makes room in different sequences: in all of them, or, with an error, in none. Must precede a run that writes
    /// there.
    fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError>;

    /// Gives a sequence that has room for `tokens` made-up keys, values and states, as if it held so many ([`MadeUp`]): to time
    /// steps at a depth.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] where the device offers no such thing.
    fn make_up(&mut self, _sequence: SequenceId, _tokens: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("this device makes up no states".into()))
    }

    /// From now on, tells when each stage ran; runs may be slower for it.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] where the device cannot tell.
    fn trace(&mut self, _trace: Trace) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("this device does not tell when its stages ran".into()))
    }

    /// Runs a plan. On an error the states of the batch's sequences are undefined.
    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError>;

    /// Row `row` of the logits of the last run, `[vocab]`.
    fn logits(&self, row: usize) -> &[f32];

    /// Whether steps can choose their tokens here; the other four calls are for [`Steps`].
    fn chooses(&self) -> bool {
        false
    }

    /// Says what steps of a plan that chooses tokens start from. None of an earlier run is under way.
    ///
    /// # Errors
    /// Those of [`Choices::check`] and of memory; then nothing has changed.
    fn begin_steps(
        &mut self,
        _plan: &Plan,
        _batch: &Batch<'_>,
        _choices: &Choices,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("this device chooses no tokens".into()))
    }

    /// Submits step number `step`, which reads what the one before hands over. At most [`STEPS_UNDER_WAY`] are not taken.
    fn submit_step(&mut self, _plan: &Plan, _step: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("this device chooses no tokens".into()))
    }

    /// Waits for step number `step`: what it chose, a word a row.
    fn take_step(&mut self, _plan: &Plan, _step: usize) -> Result<Vec<u32>, DeviceError> {
        Err(DeviceError::Unknown("this device chooses no tokens".into()))
    }

    /// These sequences took the token of a step: the state that it wrote is theirs from now on.
    fn move_states(&mut self, _sequences: &[SequenceId]) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("this device chooses no tokens".into()))
    }

    /// A copy of a part of a sequence's state, for tests and tools.
    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError>;
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn describe(&self) -> String {
        (**self).describe()
    }

    fn profile(&self) -> &Profile {
        (**self).profile()
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        (**self).open()
    }

    fn close(&mut self, sequence: SequenceId) {
        (**self).close(sequence);
    }

    fn snapshot(&mut self, sequence: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        (**self).snapshot(sequence, length)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        (**self).restore(snapshot)
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        (**self).discard(snapshot);
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        (**self).snapshot_bytes(snapshot)
    }

    fn state_bytes(&self) -> usize {
        (**self).state_bytes()
    }

    fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        (**self).reserve(rooms)
    }

    fn make_up(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        (**self).make_up(sequence, tokens)
    }

    fn trace(&mut self, trace: Trace) -> Result<(), DeviceError> {
        (**self).trace(trace)
    }

    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        (**self).run(plan, batch)
    }

    fn logits(&self, row: usize) -> &[f32] {
        (**self).logits(row)
    }

    fn chooses(&self) -> bool {
        (**self).chooses()
    }

    fn begin_steps(&mut self, plan: &Plan, batch: &Batch<'_>, choices: &Choices) -> Result<(), DeviceError> {
        (**self).begin_steps(plan, batch, choices)
    }

    fn submit_step(&mut self, plan: &Plan, step: usize) -> Result<(), DeviceError> {
        (**self).submit_step(plan, step)
    }

    fn take_step(&mut self, plan: &Plan, step: usize) -> Result<Vec<u32>, DeviceError> {
        (**self).take_step(plan, step)
    }

    fn move_states(&mut self, sequences: &[SequenceId]) -> Result<(), DeviceError> {
        (**self).move_states(sequences)
    }

    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        (**self).state(sequence, part)
    }
}
