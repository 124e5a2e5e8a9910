//! Quantized matrices: the embedding's rows, and products with them.

mod embed;
mod matmul;
mod swiglu;

pub use embed::Embed;
pub use matmul::{Matmul, Method, Output, Parts};
pub use swiglu::{Quantized, Swiglu};
pub(crate) use swiglu::{sigmoid, silu};
