//! Gated DeltaNet: the causal convolution, the preparation of q, k and gates, and the recurrent scan.
//!
//! Kernels with a `slots` parameter run several sequences at once: row `s * rows + t` is token t of sequence s, and the
//! state operands are bound once for each sequence.

mod conv;
mod prep;
mod scan;

pub use conv::{ConvSilu, ConvState};
pub use prep::{DeltaPrep, DeltaPrepared, L2_EPS};
pub use scan::{DeltaScan, ScanInputs};
