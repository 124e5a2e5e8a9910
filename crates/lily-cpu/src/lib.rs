//! The CPU device: executes plans launch after launch on pinned threads, with SIMD chosen at run time. Quantized weights
//! are read where the file has them, at any alignment, and never expanded in memory.
//!
//! Results do not depend on the number of threads, on how a prompt is cut into chunks, or on what runs beside a row:
//! every output is computed by one task, in one order that depends on the model's sizes alone. So prefill and decode
//! give the same bits, which a test holds.

mod device;
#[cfg(test)]
mod kernel_tests;
mod kernels;
mod loops;
mod memory;
mod pool;
mod precision;
mod roof;
mod rounded;
mod simd;
mod state;

pub use device::{CpuDevice, CpuOptions};
pub use precision::Precision;
pub use roof::Roof;
pub use simd::Isa;
