//! Quantized matrices: the embedding's rows, and products with them.

mod dequantize;
mod embed;
mod gated_norm_matmul;
mod launch;
mod matmul;
mod norm_matmul;
mod norm_swiglu;
mod silu_mul;
mod swiglu;
#[cfg(feature = "testing")]
mod testing;

pub use dequantize::Dequantize;
pub use embed::Embed;
pub use gated_norm_matmul::GatedNormMatmul;
pub use matmul::{Matmul, Method, Output, Parts};
pub use norm_matmul::NormMatmul;
pub use norm_swiglu::NormSwiglu;
pub use silu_mul::SiluMul;
pub use swiglu::{Quantized, Swiglu};
pub(crate) use swiglu::{sigmoid, silu};
