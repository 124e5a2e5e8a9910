//! Models and devices for the checks.

use std::path::PathBuf;
use std::sync::Arc;

use lily_cuda::{CudaDevice, CudaOptions, Gpu, KernelSet};
use lily_model::plan::{Activation, Profile};
use lily_model::testing::{Spec, model_in_memory};
use lily_model::{Model, Runner, RunnerOptions};

/// What all checks run with.
pub(crate) struct Set {
    pub(crate) gpu: Gpu,
    pub(crate) fixtures: PathBuf,
    pub(crate) cubins: Option<PathBuf>,
    pub(crate) kernels: KernelSet,
    pub(crate) graphs: bool,
    pub(crate) one_by_one: bool,
}

impl Set {
    pub(crate) fn fixture(&self, name: &str) -> Arc<Model> {
        Arc::new(Model::open(&self.fixtures.join(name)).unwrap())
    }

    pub(crate) fn profile(&self, activation: Activation) -> Profile {
        self.gpu.profile().with_activation(activation)
    }

    pub(crate) fn device_with(
        &self,
        model: &Model,
        profile: &Profile,
        state_bytes: usize,
        graphs: bool,
    ) -> CudaDevice {
        let options = CudaOptions {
            kernels: self.kernels,
            graphs,
            one_by_one: self.one_by_one,
            cubins: self.cubins.clone(),
            ..CudaOptions::new(profile.clone(), state_bytes)
        };
        let (weights, packing) = model.weights.packed();
        CudaDevice::new(&self.gpu, &model.geometry, &weights, model, &packing, &options).unwrap()
    }

    pub(crate) fn device(&self, model: &Model, profile: &Profile) -> CudaDevice {
        self.device_with(model, profile, 1 << 28, self.graphs)
    }

    pub(crate) fn runner(&self, model: &Model, profile: &Profile) -> Runner<CudaDevice> {
        self.runner_on(model, self.device(model, profile))
    }

    pub(crate) fn runner_on(&self, model: &Model, device: CudaDevice) -> Runner<CudaDevice> {
        let options = RunnerOptions { context: 8192, max_chunk: 4096, max_decode_rows: 4 };
        Runner::new(model.geometry.clone(), model.weights.packed().0, device, options)
    }
}

/// A random model of small sizes, whose key heads the chunk-parallel form of DeltaNet takes.
pub(crate) fn tiny() -> Arc<Model> {
    let mut spec = Spec::tiny();
    spec.geometry.delta.key_dim = 32;
    Arc::new(model_in_memory(&spec))
}

/// Blocks of attention shorter than any real device's, so that short prompts have several.
pub(crate) fn short_blocks(profile: Profile) -> Profile {
    Profile { block_attention_above: 64, attention_block: 64, ..profile }
}
