//! The phase plans as data: which kernels run, on which bytes, in which order.
//!
//! [`prefill`] and [`decode`] build a [`Plan`] from the sizes of a model alone. A plan is the same for every device and
//! from step to step: token ids and positions are read from buffers. Where a launch must wait for earlier ones follows
//! from the byte ranges that launches declare ([`stages()`]); nobody places barriers by hand.

mod arena;
mod attention;
mod build;
mod delta;
mod moe;
mod stages;

use std::ops::Range;

use lily_kernels::{Access, Kernel};

pub use build::{PlanError, decode, prefill};
pub use stages::stages;

use crate::TensorId;

/// Memory that launches read and write. `slot` numbers the sequences of a launch, `layer` the layers of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// A tensor of the checkpoint.
    Tensor(TensorId),
    /// Activations: one block of [`Plan::arena_bytes`], undefined before the first launch.
    Arena,
    /// Token ids of the rows, u32 `[rows]`.
    Tokens,
    /// Positions of the rows in their sequences, u32 `[rows]`.
    Positions,
    /// Keys of an attention layer, f32 `[context, kv_heads, head_dim]`.
    Keys {
        /// The sequence's place in the launch.
        slot: usize,
        /// The layer.
        layer: usize,
    },
    /// Values of an attention layer, f32 `[context, kv_heads, head_dim]`.
    Values {
        /// The sequence's place in the launch.
        slot: usize,
        /// The layer.
        layer: usize,
    },
    /// S of a Gated DeltaNet layer, f32 `[value_heads, value_dim, key_dim]`.
    DeltaState {
        /// The sequence's place in the launch.
        slot: usize,
        /// The layer.
        layer: usize,
    },
    /// The last raw qkv rows of a Gated DeltaNet layer, f32 `[conv_taps - 1, channels]`, oldest first.
    ConvState {
        /// The sequence's place in the launch.
        slot: usize,
        /// The layer.
        layer: usize,
    },
    /// f32 `[logit rows, vocab]`.
    Logits,
}

/// Some bytes of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Which memory.
    pub buffer: Buffer,
    /// Which bytes of it.
    pub bytes: Range<usize>,
}

impl View {
    /// True if the two share a byte.
    pub fn overlaps(&self, other: &View) -> bool {
        self.buffer == other.buffer
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// What the launch is for, as in the checkpoint's names where there is one: `in_proj_qkv`.
    pub label: &'static str,
    /// The layer it belongs to.
    pub layer: Option<usize>,
    /// The kernel and its sizes.
    pub kernel: Kernel,
    /// Operands, in the order of [`Kernel::operands`].
    pub bindings: Vec<View>,
}

impl Launch {
    /// Each binding with what the kernel does to it.
    pub fn accesses(&self) -> impl Iterator<Item = (&View, Access)> {
        self.bindings.iter().enumerate().map(|(i, view)| (view, self.kernel.operand_of(i).access))
    }

    /// True if the other launch must not run beside this one: one writes bytes that the other touches.
    pub fn conflicts(&self, other: &Launch) -> bool {
        self.accesses().any(|(a, access)| {
            other
                .accesses()
                .any(|(b, other_access)| (access.writes() || other_access.writes()) && a.overlaps(b))
        })
    }
}

/// Which phase a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Many tokens of one sequence.
    Prefill,
    /// One token each of several sequences.
    Decode,
}

/// A list of launches and what they need.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which phase.
    pub phase: Phase,
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Upper bound of every position + 1.
    pub context: usize,
    /// Rows of logits made; 0 for an inner chunk of a prompt.
    pub logit_rows: usize,
    /// Bytes of activations.
    pub arena_bytes: usize,
    /// In an order in which running one after the other is right.
    pub launches: Vec<Launch>,
    /// Runs of launches that may run beside each other; everything in a stage waits for all stages before it.
    pub stages: Vec<Range<usize>>,
}
