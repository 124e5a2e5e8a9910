//! What a scheduler may ask of a model on a device, without knowing plans, launches or tensors.

use crate::choosing::{Choosing, ChoosingRow, Chosen};

/// A live sequence on a device: its KV cache and recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A frozen state of a sequence, from which new sequences can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u64);

/// For which rows of a prefill logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogitRows {
    /// None: an inner chunk of a prompt.
    None,
    /// The last row only.
    Last,
    /// Every row, in order.
    All,
}

/// Why a device could not do something.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Memory is not there: what was asked and what is left.
    #[error(
        "{what} needs {need_bytes} bytes and {left_bytes} bytes are left; lower --context or --cache-memory, or \
         serve fewer requests at once"
    )]
    OutOfMemory {
        /// What was to be allocated.
        what: &'static str,
        /// Its size.
        need_bytes: usize,
        /// What remains of the budget.
        left_bytes: usize,
    },
    /// A sequence or snapshot that is not (or no longer) there: a bug of the caller.
    #[error("{0}")]
    Unknown(String),
    /// A sequence would grow past the context it was opened for.
    #[error("the sequence holds {length} tokens and {more} more do not fit its context of {context}")]
    ContextFull {
        /// Tokens held.
        length: usize,
        /// Tokens asked for.
        more: usize,
        /// Its limit.
        context: usize,
    },
    /// The device failed; the sentence says how.
    #[error("the device failed: {0}")]
    Failed(String),
    /// The device is gone, with everything on it: whatever it is asked from now on is this error. Another one may be made.
    #[error("the device is lost: {0}")]
    Lost(String),
}

/// A model on a device. One thread owns it.
///
/// After an error other than [`DeviceError::Failed`] and [`DeviceError::Lost`] nothing has changed. Results of a sequence depend on its own
/// tokens and on where its prefill was cut, never on other sequences, on the rows that ran beside it or on threads.
pub trait Forward: Send {
    /// Rows of the logits: the padded vocabulary.
    fn vocab(&self) -> usize;

    /// The most tokens one `prefill` call takes.
    fn max_chunk(&self) -> usize;

    /// The most rows one `decode` call takes; at least 1.
    fn max_decode_rows(&self) -> usize;

    /// Opens an empty sequence.
    fn open(&mut self) -> Result<SequenceId, DeviceError>;

    /// Frees a sequence; unknown ids are ignored.
    fn close(&mut self, sequence: SequenceId);

    /// Tokens a sequence holds.
    fn length(&self, sequence: SequenceId) -> usize;

    /// Freezes a sequence's state as it is now. KV is shared, recurrent state is copied.
    fn snapshot(&mut self, sequence: SequenceId) -> Result<SnapshotId, DeviceError>;

    /// Opens a sequence that continues from a snapshot; the snapshot stays.
    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError>;

    /// Frees a snapshot; unknown ids are ignored.
    fn discard(&mut self, snapshot: SnapshotId);

    /// Bytes that would be freed if this snapshot alone were discarded now, at least; what is shared counts for the
    /// last holder.
    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize;

    /// Bytes of all sequences and snapshots now.
    fn state_bytes(&self) -> usize;

    /// Makes an empty sequence one of `tokens` tokens with made-up keys, values and states: to time steps at a depth without the
    /// prefill. What follows says nothing.
    ///
    /// # Errors
    /// Those of room; [`DeviceError::Unknown`] where that is not offered, or the sequence is not empty.
    fn make_up(&mut self, _sequence: SequenceId, _tokens: usize) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("no states are made up here".into()))
    }

    /// Appends `tokens` (1 to `max_chunk` of them) to a sequence.
    fn prefill(&mut self, sequence: SequenceId, tokens: &[u32], rows: LogitRows) -> Result<(), DeviceError>;

    /// Appends one token to each of 1 to `max_decode_rows` different sequences; makes the logits of every row.
    fn decode(&mut self, rows: &[(SequenceId, u32)]) -> Result<(), DeviceError>;

    /// Logits of row `row` of the last `prefill` or `decode`, `[vocab]`; valid until the next call. Row 0 is the only row
    /// after [`LogitRows::Last`].
    fn logits(&self, row: usize) -> &[f32];

    /// Whether steps can choose their tokens on the device ([`Forward::begin`]), as the mechanisms are set now.
    fn chooses(&self) -> bool {
        false
    }

    /// Whether tokens can be chosen so on the device.
    fn can_choose(&self, choosing: &Choosing) -> bool {
        let mut ids: Vec<u32> = choosing.bias.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        self.chooses()
            && choosing.ends.len() <= Choosing::MOST_ENDS
            && choosing.vocabulary <= self.vocab()
            && ids.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// Begins a run of steps over 1 to `max_decode_rows` different sequences and submits the first, which appends the rows' tokens;
    /// each step chooses what the next one appends. While steps are under way, nothing else may be asked of their sequences, and no
    /// prefill and no decode of any.
    ///
    /// # Errors
    /// Those of `decode`; [`DeviceError::Unknown`] where [`Forward::can_choose`] is false, or steps are under way.
    fn begin(&mut self, _rows: &[ChoosingRow<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::Unknown("no tokens are chosen on the device here".into()))
    }

    /// Submits one more step of the run before the one under way has ended. False, and nothing has happened: take what is under way
    /// and begin again, because there is no room, or two are under way.
    fn ahead(&mut self) -> Result<bool, DeviceError> {
        Err(DeviceError::Unknown("no tokens are chosen on the device here".into()))
    }

    /// Steps that were submitted and not taken.
    fn under_way(&self) -> usize {
        0
    }

    /// Waits for the oldest step under way: what it chose for each row. A sequence behind its end token stays as it is in later
    /// steps; every other one has taken one more token.
    fn take(&mut self) -> Result<Vec<Chosen>, DeviceError> {
        Err(DeviceError::Unknown("no tokens are chosen on the device here".into()))
    }
}
