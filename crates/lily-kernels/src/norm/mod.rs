//! Root-mean-square norms.

mod gated_norm;
mod rms_norm;

pub use gated_norm::GatedNorm;
pub use rms_norm::RmsNorm;
pub(crate) use rms_norm::normed;
