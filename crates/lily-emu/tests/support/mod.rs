//! Models, runners and golden files for the tests of whole models.
#![allow(dead_code, unreachable_pub)] // each test file uses a part
#![allow(clippy::unwrap_used)] // a test's own failures

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_emu::{EmuDevice, EmuOptions};
use lily_kernels::Activation;
use lily_kernels::select::Request;
use lily_model::device::{Batch, Choices, Device, Fresh, Room};
use lily_model::plan::{DecodeShape, Plan, Profile, Tail, Target, decode, prefill};
pub use lily_model::testing::oracle::*;
use lily_model::{LogitRows, Model, Runner, RunnerOptions, SequenceId};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn fixture(name: &str) -> Arc<Model> {
    Arc::new(Model::open(&repository().join("tests/fixtures").join(name)).unwrap())
}

pub fn goldens(model: &str) -> Vec<Golden> {
    Golden::all(&repository().join("tests/fixtures"), model)
}

pub fn exact() -> Profile {
    Profile::emulator().with_activation(Activation::F32)
}

pub fn device(model: &Arc<Model>, profile: &Profile, seed: u32) -> EmuDevice {
    let options = EmuOptions { profile: profile.clone(), threads: None, seed, state_bytes: 1 << 28 };
    EmuDevice::new(&model.geometry, model.clone(), model.weights.packed().1, &options).unwrap()
}

pub fn runner(model: &Arc<Model>, profile: &Profile, seed: u32) -> Runner<EmuDevice> {
    let options = RunnerOptions { context: 8192, max_chunk: 4096, max_decode_rows: 4 };
    let device = device(model, profile, seed);
    Runner::new(model.geometry.clone(), model.weights.packed().0, device, options)
}

/// Sequences with prompts on a device, without a runner: plans of any shape, and steps that hand tokens over.
pub struct Bare {
    pub model: Arc<Model>,
    pub profile: Profile,
    pub device: EmuDevice,
}

impl Bare {
    pub const CONTEXT: usize = 256;

    pub fn new(model: Arc<Model>, profile: Profile, seed: u32) -> Self {
        let device = device(&model, &profile, seed);
        Bare { model, profile, device }
    }

    pub fn target<T>(&self, with: impl FnOnce(Target<'_>) -> T) -> T {
        let weights = self.model.weights.packed().0;
        with(Target { geometry: &self.model.geometry, weights: &weights, profile: &self.profile })
    }

    pub fn prompt(&mut self, tokens: &[u32]) -> SequenceId {
        let sequence = self.device.open().unwrap();
        self.device.reserve(&[Room { sequence, from: 0, to: tokens.len() + 40 }]).unwrap();
        let plan = self.chunk(tokens.len());
        let positions: Vec<u32> = (0..tokens.len() as u32).collect();
        self.device.run(&plan, &Batch { sequences: &[sequence], tokens, positions: &positions }).unwrap();
        sequence
    }

    /// The plan of a prompt.
    pub fn chunk(&self, rows: usize) -> Plan {
        self.target(|t| prefill(t, rows, Self::CONTEXT, LogitRows::Last)).unwrap()
    }

    /// The plan of a step.
    pub fn plan(&self, slots: usize, tail: Tail) -> Plan {
        let shape = DecodeShape { tail, ..DecodeShape::logits(slots, Self::CONTEXT) };
        self.target(|t| decode(t, shape)).unwrap()
    }

    /// One step with the token from outside. Returns the most probable next one.
    pub fn step(&mut self, sequence: SequenceId, token: u32, position: usize) -> u32 {
        let plan = self.plan(1, Tail::Logits);
        let batch = Batch { sequences: &[sequence], tokens: &[token], positions: &[position as u32] };
        self.device.run(&plan, &batch).unwrap();
        top(self.device.logits(0)) as u32
    }

    pub fn choices(&self, requests: Vec<Request>) -> Choices {
        let (entries, vocab) = (requests.len(), self.model.geometry.vocab);
        let fresh = |entry| Fresh {
            entry,
            counts: Some(vec![0; vocab]),
            bias: Some(vec![0.0; vocab]),
            mask: Some(vec![u32::MAX; vocab.div_ceil(32)]),
        };
        Choices { requests, entries, fresh: (0..entries).map(fresh).collect() }
    }

    pub fn states(&self, sequence: SequenceId) -> Vec<Vec<u32>> {
        states(&self.device, &self.model, sequence)
    }
}
