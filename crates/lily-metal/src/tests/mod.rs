//! The device over a GPU of paper.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod encoding;
mod failing;
mod loading;
mod sharing;

use std::sync::Arc;

use lily_model::device::TensorSource;
use lily_model::plan::{Profile, Target};
use lily_model::testing::{Spec, model_in_memory};
use lily_model::{Model, Runner, RunnerOptions, TensorId};

use crate::fake::FakeGpu;
use crate::gpu::Language;
use crate::{Dialect, MetalDevice, MetalOptions};

const DIALECT: Dialect = Dialect { language: Language::V3_1, tensors: false };

fn profile() -> Profile {
    Profile::named("metal:m5-max").unwrap()
}

/// A small random model.
fn tiny() -> Arc<Model> {
    Arc::new(model_in_memory(&Spec::tiny()))
}

fn device(gpu: &FakeGpu, model: &Model, profile: Profile) -> MetalDevice<FakeGpu> {
    let (weights, packing) = model.weights.packed();
    let options = MetalOptions::new(profile, DIALECT, 1 << 28);
    MetalDevice::new(gpu, &model.geometry, &weights, model, &packing, &options).unwrap()
}

pub(crate) fn runner(gpu: &FakeGpu, model: &Model) -> Runner<MetalDevice<FakeGpu>> {
    let options = RunnerOptions { context: 1024, max_chunk: 256, max_decode_rows: 4 };
    let device = device(gpu, model, profile());
    Runner::new(model.geometry.clone(), model.weights.packed().0, device, options)
}

/// The sizes of a model without its bytes.
struct Hollow<'a>(&'a Model);

impl TensorSource for Hollow<'_> {
    fn bytes(&self, _tensor: TensorId) -> &[u8] {
        &[]
    }

    fn len(&self, tensor: TensorId) -> usize {
        TensorSource::len(self.0, tensor)
    }

    fn read(&self, _tensor: TensorId, _start: usize, _into: &mut [u8]) {}
}

fn target<'a>(model: &'a Model, weights: &'a lily_model::Weights, profile: &'a Profile) -> Target<'a> {
    Target { geometry: &model.geometry, weights, profile }
}
