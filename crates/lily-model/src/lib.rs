//! Config, checkpoint and geometry of a Qwen3.6-architecture model, and the phase plans: which kernels run on which
//! tensors in which order. The only crate that knows the order of operations; it knows no device and no text.
#![deny(unsafe_code)] // but for the memory map, which says why

mod checkpoint;
mod choosing;
mod config;
pub mod device;
mod error;
mod forward;
mod geometry;
pub mod inspect;
mod locate;
mod model;
pub mod pack;
mod packing;
pub mod plan;
mod presets;
mod runner;
pub mod synth;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod weights;

pub use checkpoint::{Checkpoint, ElementType, Mapped, MemoryModel, TensorInfo};
pub use choosing::{Choosing, ChoosingRow, Chosen};
pub use config::{Format, SamplingDefaults};
pub use error::ModelError;
pub use forward::{DeviceError, Forward, LogitRows, SequenceId, SnapshotId};
pub use geometry::{AttentionGeometry, DeltaGeometry, Geometry, LayerKind, MoeGeometry};
pub use locate::HubCache;
pub use model::Model;
pub use packing::{Concatenated, Packing};
pub use presets::Preset;
pub use runner::{Runner, RunnerOptions};
pub use weights::{
    AttentionWeights, DeltaWeights, LayerWeights, MixerWeights, MoeWeights, PlainTensor, QuantizedMatrix,
    TensorId, Weights,
};
