//! The Metal device: executes plans on an Apple GPU through the texts of the kernels, which the system's own compiler takes as they
//! are.
//!
//! Behind one narrow place ([`gpu::Gpu`]) stands Metal, on macOS only; everything that is decided is decided in front of it and
//! tested with a GPU that records what it is told (`fake`, feature `testing`). **Nothing here has run on a Mac yet.**
//!
//! A plan is written down as concurrent dispatches with a barrier before each stage, in submissions of at most half a second as
//! estimated, of which at most two are on their way. Two inputs of a step take turns, so that one is written while the other is read.
//!
//! Submissions fail by themselves and later: then what they wrote is spoiled, each use of it is an error, and all else goes on. Where a
//! failure means that the GPU is gone for this process, or takes no more of its commands, everything is [`DeviceError::Lost`], and whoever
//! owns the device makes another one: another queue, other buffers, other pipelines.
//!
//! [`DeviceError::Lost`]: lily_model::DeviceError::Lost

mod alone;
#[cfg(target_os = "macos")]
pub mod apple;
mod buffers;
#[cfg(feature = "testing")]
pub mod checking;
mod device;
mod estimate;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod faults;
pub mod gpu;
mod hand_over;
mod load;
mod memory;
#[cfg(not(target_os = "macos"))]
mod nowhere;
mod offline;
mod pipelines;
mod pool;
mod prepared;
mod probe;
mod queue;
#[cfg(test)]
mod tests;
mod try_queue;
#[cfg(any(target_os = "macos", test))]
mod untracked;

pub use device::{MetalDevice, MetalOptions};
pub use estimate::prefill_chunk;
#[cfg(not(target_os = "macos"))]
pub use nowhere::NoGpu;
pub use offline::Offline;
pub use pipelines::Dialect;
pub use probe::{Probed, QueueChoice, dialect, probe};
pub use queue::MOST_IN_FLIGHT;
