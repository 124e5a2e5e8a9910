//! The contract of every kernel: what it computes, the shapes it takes, the operands it reads and writes, a plain f64
//! reference to hold every device's version against, and the cases worth testing (both sides of each threshold, ragged
//! sizes, outliers).
//!
//! One file an operation, in family folders. A device implements [`Kernel`]; a plan is a list of launches of it. This
//! crate knows neither plans nor devices.
#![forbid(unsafe_code)]

/// The product of some factors, or the largest u64: operations of sizes that no machine could run.
pub(crate) fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |product, factor| product.saturating_mul(*factor as u64))
}

mod activation;
pub mod attention;
mod cuda_unit;
pub mod delta;
mod emulator_unit;
mod format;
mod kernel;
mod metal_unit;
pub mod moe;
pub mod norm;
mod operand;
pub mod quant;
pub mod random;
pub mod select;
#[cfg(feature = "testing")]
pub mod testing;
mod text;

pub use activation::Activation;
pub use cuda_unit::{CUDA_HEADERS, CUDA_OPTIONS, cuda_symbol, cuda_unit};
pub use emulator_unit::{emulator_symbol, emulator_unit};
pub use format::{PlainType, QuantFormat, bf16_bits, bf16_to_f32};
pub use kernel::{Contract, Kernel};
pub use metal_unit::{WordKind, metal_unit, word_kind};
pub use operand::{Access, Element, Operand, Traffic};
pub use text::{Dispatch, SLOT_WORDS, SLOTS, Text, TextParameter};

/// The texts of the kernels with their typed parameters, made from the files themselves.
pub mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
