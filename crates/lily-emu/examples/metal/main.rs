//! The Metal device where no Mac is: its checks of whole models over a GPU of paper (`lily_metal::fake`), whose commands run the kernels'
//! texts in the emulator, as late as a GPU may. `metal [--fixtures FOLDER] [--only WORD]`; prints 'N passed, N failed' last.
#![allow(clippy::unwrap_used)] // failures of checks, which are caught
#![allow(unsafe_code)] // the emulator takes addresses

mod executor;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lily_metal::fake::FakeGpu;
use lily_metal::{Dialect, MetalDevice, MetalOptions, dialect};
use lily_model::device::{Batch, Choices};
use lily_model::plan::{Activation, Plan, Profile};
use lily_model::testing::checks::{self, Subject};
use lily_model::{DeviceError, Model, SequenceId};

struct Set {
    gpu: FakeGpu,
    dialect: Dialect,
    fixtures: PathBuf,
}

impl Subject for Set {
    type Device = MetalDevice<FakeGpu>;

    fn fixtures(&self) -> &Path {
        &self.fixtures
    }

    fn profile(&self, activation: Activation) -> Profile {
        Profile::named("metal:m4-max").unwrap().with_activation(activation)
    }

    fn device(&self, model: &Model, profile: &Profile, state_bytes: usize) -> Self::Device {
        let (weights, packing) = model.weights.packed();
        let options = MetalOptions::new(profile.clone(), self.dialect, state_bytes);
        MetalDevice::new(&self.gpu, &model.geometry, &weights, model, &packing, &options).unwrap()
    }

    fn hand_over(
        device: &mut Self::Device,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &mut Choices,
        count: usize,
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        device.hand_over(plan, batch, choices, count)
    }

    fn take_back(device: &mut Self::Device, sequence: SequenceId) -> Result<(), DeviceError> {
        device.take_back(sequence)
    }
}

/// What a GPU of paper complains of.
fn wrongs(set: &Set) -> String {
    let wrongs = set.gpu.wrongs();
    assert!(wrongs.is_empty(), "{} wrongs, the first: {}", wrongs.len(), wrongs[0]);
    let most = set.gpu.most_in_flight();
    assert!(most <= lily_metal::MOST_IN_FLIGHT, "{most} submissions on their way");
    format!("{} submissions", set.gpu.submissions())
}

fn run() -> Result<(usize, usize), String> {
    let (mut fixtures, mut only) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} takes a value"));
        match name.as_str() {
            "--fixtures" => fixtures = Some(PathBuf::from(value?)),
            "--only" => only = Some(value?),
            _ => return Err(format!("{name} is not known: see the head of examples/metal/main.rs")),
        }
    }
    let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true).with_executor(executor::executor());
    let dialect = dialect(&gpu).map_err(|e| e.to_string())?;
    let set = Set { gpu, dialect, fixtures: checks::fixtures(fixtures)? };
    let probed = checks::check("the probe takes products that are right", |set: &Set| {
        assert!(set.dialect.tensors, "the probe refused them");
        set.dialect.language.name().to_owned()
    });
    let all = checks::all().into_iter().chain([probed]).collect();
    let mut outcome = checks::run(&set, all, only.as_deref());
    let last = checks::run(&set, vec![checks::check("host and GPU keep apart", wrongs)], None);
    outcome.passed += last.passed;
    outcome.failed += last.failed;
    Ok((outcome.passed, outcome.failed))
}

fn main() -> ExitCode {
    let (passed, failed) = run().unwrap_or_else(|error| {
        println!("{error}");
        (0, 1)
    });
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
