//! Gated DeltaNet: the causal convolution, the preparation of q, k and gates, and the recurrent scan.
//!
//! Kernels with a `slots` parameter run several sequences at once: row `s * rows + t` is token t of sequence s, and the
//! state operands are bound once for each sequence. GPUs bind a state operand once, as the pool of all sequences, and find in
//! the table `slots` which entry to read and which to write; those that are done keep both.

#[cfg(feature = "testing")]
mod chunks;
mod conv;
#[cfg(feature = "testing")]
mod pool;
mod prep;
#[cfg(feature = "testing")]
mod recurrence;
mod scan;
mod step;
#[cfg(feature = "testing")]
mod step_cases;
mod stream;

/// The most taps of the convolution that kernels of GPUs take.
pub const MOST_TAPS: usize = 8;

/// The widest key head that kernels of GPUs take: a row of its state fits in a thread's registers, four threads a row.
pub const MOST_KEY_DIM: usize = 256;

/// The widest value head that kernels of GPUs take: a step with the gated norm has a token's head in threadgroup memory.
pub const MOST_VALUE_DIM: usize = 1024;

pub use conv::{ConvSilu, ConvState};
pub use prep::{DeltaPrep, DeltaPrepared, L2_EPS};
pub use scan::{DeltaScan, Scan, ScanInputs};
pub use step::{DeltaStep, StepInputs, StepState};
pub use stream::DeltaStream;
