//! Tokens that the device chooses, held by the checks that every such device shares.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_emu::{EmuDevice, EmuOptions};
use lily_model::device::TensorSource;
use lily_model::plan::{Activation, Profile};
use lily_model::testing::checks::{self, Subject};
use lily_model::{DeviceError, Model, SequenceId, TensorId};

/// A model's tensors, by their ids.
struct Tensors(Vec<Vec<u8>>);

impl TensorSource for Tensors {
    fn bytes(&self, tensor: TensorId) -> &[u8] {
        &self.0[tensor.0 as usize]
    }
}

/// The emulator with launches and threads in random order.
struct Emulator(PathBuf);

impl Subject for Emulator {
    type Device = EmuDevice;

    fn fixtures(&self) -> &Path {
        &self.0
    }

    fn profile(&self, activation: Activation) -> Profile {
        Profile::emulator().with_activation(activation)
    }

    fn device(&self, model: &Model, profile: &Profile, state_bytes: usize) -> EmuDevice {
        let options = EmuOptions { profile: profile.clone(), threads: None, seed: 1, state_bytes };
        let tensors = model.checkpoint.tensors();
        let source = Arc::new(Tensors(tensors.map(|(id, _)| model.checkpoint.bytes(id).to_vec()).collect()));
        EmuDevice::new(&model.geometry, source, model.weights.packed().1, &options).unwrap()
    }

    fn take_back(device: &mut EmuDevice, sequence: SequenceId) -> Result<(), DeviceError> {
        device.take_back(sequence)
    }
}

#[test]
fn tokens_are_chosen_on_the_device() {
    let set = Emulator(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures"));
    let outcome = checks::run(&set, checks::all(), Some("tokens are"));
    assert_eq!((outcome.passed, outcome.failed), (6, 0), "{:?}", outcome.results);
}
