//! The phase plans as data: which kernels run, on which bytes, in which order.
//!
//! [`prefill`] and [`decode`] build a [`Plan`] from the sizes of a model alone. A plan is the same for every device and
//! from step to step: token ids and positions are read from buffers. Where a launch must wait for earlier ones follows
//! from the byte ranges that launches declare ([`stages()`]); nobody places barriers by hand.

mod arena;
mod attention;
mod build;
mod cost;
mod delta;
mod limits;
mod moe;
mod profile;
mod select;

mod stages;
mod switches;

use std::ops::Range;

pub use lily_kernels::Activation;
use lily_kernels::{Access, Kernel};

pub use build::{DecodeShape, PlanError, Tail, Target, decode, prefill};
pub use cost::{Cost, LayerCost, PlanCost};
pub use limits::check_limits;
pub use profile::{ExpertKernels, GatedNormPlace, MatrixUnit, Profile};
pub use stages::{Hazard, hazards, stages};
pub use switches::{Effect, Switch, Switches};

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
    /// The table of the sequences of the rows, u32 `[rows, SLOT_WORDS]`: where their states and pages are.
    Slots,
    /// Token ids of the next step, u32 `[rows]`.
    NextTokens,
    /// Positions of the next step, u32 `[rows]`.
    NextPositions,
    /// The table of the next step: a device keeps two steps and swaps them.
    NextSlots,
    /// How the next token of each row is chosen, u32 `[rows, REQUEST_WORDS]`.
    Requests,
    /// How often tokens occurred, u32 `[entries, vocab]`.
    Counts,
    /// Added to logits, f32 `[entries, vocab]`.
    Bias,
    /// Tokens that are allowed, a bit each, u32 `[entries, vocab / 32]`.
    Mask,
    /// The chosen tokens, u32 `[rows]`, which the host reads when it gets to it.
    Chosen,
    /// Keys of an attention layer, activations `[context, kv_heads, head_dim]`.
    Keys {
        /// The sequence's place in the launch.
        slot: usize,
        /// The layer.
        layer: usize,
    },
    /// Values of an attention layer, activations `[context, kv_heads, head_dim]`.
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
    /// The host executes it: it waits for the device, computes, and lets the device go on.
    pub on_host: bool,
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
    /// A few tokens each of several sequences.
    Decode,
}

/// A list of launches and what they need.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which phase.
    pub phase: Phase,
    /// What activations are stored as.
    pub activation: Activation,
    /// The mechanisms it was built with.
    pub switches: Switches,
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Upper bound of every position + 1.
    pub context: usize,
    /// Rows of logits made; 0 for an inner chunk of a prompt.
    pub logit_rows: usize,
    /// What stands at the end of a decode step.
    pub tail: Tail,
    /// Bytes of activations.
    pub arena_bytes: usize,
    /// In an order in which running one after the other is right.
    pub launches: Vec<Launch>,
    /// Runs of launches that may run beside each other; everything in a stage waits for all stages before it.
    pub stages: Vec<Range<usize>>,
}
