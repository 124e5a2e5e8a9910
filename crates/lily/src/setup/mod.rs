//! From flags to things that work: a model, its text side, a device, an engine.

mod engine;
mod memory;
mod model;
mod sampling;
mod warm;

pub(crate) use engine::{DECODE_ROWS, PREFILL_CHUNK, Started, cpu_options, profile, runner, start};
pub(crate) use memory::{Budget, machine, readable, sequence_bytes};
pub(crate) use model::{DEMO_TEMPLATE, LoadedModel, load, load_weights, preset};
pub(crate) use sampling::{defaults as default_sampling, sampling};
