//! The CUDA device for the checks.

use std::path::{Path, PathBuf};

use lily_cuda::{CudaDevice, CudaOptions, Gpu, KernelSet};
use lily_model::plan::{Activation, Profile};
use lily_model::testing::checks::Subject;
use lily_model::{DeviceError, Model, SequenceId};

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
}

impl Subject for Set {
    type Device = CudaDevice;

    fn fixtures(&self) -> &Path {
        &self.fixtures
    }

    fn profile(&self, activation: Activation) -> Profile {
        self.gpu.profile().with_activation(activation)
    }

    fn device(&self, model: &Model, profile: &Profile, state_bytes: usize) -> CudaDevice {
        self.device_with(model, profile, state_bytes, self.graphs)
    }

    fn take_back(device: &mut CudaDevice, sequence: SequenceId) -> Result<(), DeviceError> {
        device.take_back(sequence)
    }
}
