//! From flags to things that work: a model, its text side, a device, an engine.

mod bar;
pub(crate) mod cuda;
mod device;
mod engine;
mod memory;
pub(crate) mod metal;
mod model;
mod sampling;
mod trace;
mod warm;
mod wired;

pub(crate) use device::{Chosen, DECODE_ROWS, Kind, choose};
pub(crate) use engine::{Places, Started, start};
pub(crate) use memory::{Budget, Footprint, machine, process_peak, readable, sequence_bytes};
pub(crate) use model::{
    DEMO_TEMPLATE, LoadedModel, folder, load, load_weights, load_weights_routed, load_with_any_text, preset,
};
pub(crate) use sampling::{defaults as default_sampling, sampling};
