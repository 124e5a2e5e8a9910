//! The contract of every kernel: what it computes, the shapes it takes, the operands it reads and writes, a plain f64
//! reference to hold every device's version against, and the cases worth testing (both sides of each threshold, ragged
//! sizes, outliers).
//!
//! One file an operation, in family folders. A device implements [`Kernel`]; a plan is a list of launches of it. This
//! crate knows neither plans nor devices.
#![forbid(unsafe_code)]

pub mod attention;
pub mod delta;
mod format;
mod kernel;
pub mod moe;
pub mod norm;
pub mod quant;
pub mod random;

pub use format::{PlainType, QuantFormat, bf16_bits, bf16_to_f32};
pub use kernel::{Access, Kernel, Operand};
