//! Models, runners and golden files for the tests of whole models.
#![allow(dead_code, unreachable_pub)] // each test file uses a part
#![allow(clippy::unwrap_used)] // a test's own failures

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_emu::{Choices, EmuDevice, EmuOptions};
use lily_kernels::Activation;
use lily_kernels::select::Request;
use lily_model::device::{Batch, Device, Room, StatePart};
use lily_model::plan::{DecodeShape, Plan, Profile, Tail, Target, decode, prefill};
use lily_model::{Forward, LayerKind, LogitRows, Model, Runner, RunnerOptions, SequenceId};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn fixture(name: &str) -> Arc<Model> {
    Arc::new(Model::open(&repository().join("tests/fixtures").join(name)).unwrap())
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

/// How tokens are fed: chunks of so many, and single steps from a position on.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    pub chunk: usize,
    pub decode_from: usize,
}

impl Feed {
    pub const fn chunks(chunk: usize) -> Self {
        Feed { chunk, decode_from: usize::MAX }
    }
}

/// Logits of every position.
pub fn all_logits(
    runner: &mut Runner<EmuDevice>,
    sequence: SequenceId,
    tokens: &[u32],
    feed: Feed,
) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let (prompt, steps) = tokens.split_at(feed.decode_from.min(tokens.len()));
    for chunk in prompt.chunks(feed.chunk) {
        runner.prefill(sequence, chunk, LogitRows::All).unwrap();
        rows.extend((0..chunk.len()).map(|r| runner.logits(r).to_vec()));
    }
    for token in steps {
        runner.decode(&[(sequence, *token)]).unwrap();
        rows.push(runner.logits(0).to_vec());
    }
    rows
}

pub fn top(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference; infinite where a value is none.
pub fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let far = |(got, want): (&f32, &f32)| if got.is_finite() { (got - want).abs() } else { f32::INFINITY };
    got.iter().zip(want).map(far).fold(0.0, f32::max)
}

pub fn parts(model: &Model) -> Vec<StatePart> {
    let kinds = model.geometry.layers.iter().enumerate();
    let delta = kinds.filter(|(_, kind)| **kind == LayerKind::Delta).map(|(layer, _)| layer);
    delta.flat_map(|layer| [StatePart::Delta { layer }, StatePart::Conv { layer }]).collect()
}

/// All recurrent states of a sequence.
pub fn states(device: &EmuDevice, model: &Model, sequence: SequenceId) -> Vec<Vec<u32>> {
    parts(model).into_iter().map(|part| bits(&device.state(sequence, part).unwrap())).collect()
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
        let mask = vec![u32::MAX; entries * vocab.div_ceil(32)];
        Choices { requests, counts: vec![0; entries * vocab], bias: vec![0.0; entries * vocab], mask }
    }

    pub fn states(&self, sequence: SequenceId) -> Vec<Vec<u32>> {
        states(&self.device, &self.model, sequence)
    }
}

/// What the oracle made of a prompt.
pub struct Golden {
    /// `nano/p0064`.
    pub name: String,
    pub tokens: Vec<u32>,
    pub positions: Vec<usize>,
    /// A row each of `positions`.
    pub logits: Vec<Vec<f32>>,
    /// Ids from here on are padding.
    pub vocabulary: usize,
    pub greedy: Vec<u32>,
    file: Vec<u8>,
}

impl Golden {
    pub fn all(model: &str) -> Vec<Golden> {
        let folder = repository().join("tests/fixtures").join(model).join("goldens");
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        let golden = |path: &PathBuf| {
            let file = std::fs::read(path).unwrap();
            let mut golden = Golden {
                name: format!("{model}/{}", path.file_stem().unwrap().to_string_lossy()),
                tokens: Vec::new(),
                positions: Vec::new(),
                logits: Vec::new(),
                vocabulary: 0,
                greedy: Vec::new(),
                file,
            };
            golden.tokens = golden.ids("tokens");
            golden.positions = golden.ids("positions").into_iter().map(|p| p as usize).collect();
            let logits = golden.f32("logits");
            golden.logits =
                logits.chunks(logits.len() / golden.positions.len()).map(<[f32]>::to_vec).collect();
            golden.vocabulary = golden.ids("tokenizer_size")[0] as usize;
            golden.greedy = golden.ids("greedy_tokens");
            golden
        };
        files.iter().map(golden).collect()
    }

    /// Those of short prompts.
    pub fn short(model: &str, longest: usize) -> Vec<Golden> {
        Golden::all(model).into_iter().filter(|g| g.tokens.len() <= longest).collect()
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let file = safetensors::SafeTensors::deserialize(&self.file).unwrap();
        file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Of the largest |logit|: f32 activations.
pub const EXACT: f32 = 1e-4;

/// Holds logits of f32 activations against the oracle. Returns how far they are off, of the largest.
pub fn check_exact(golden: &Golden, rows: &[Vec<f32>], what: &str) -> f32 {
    let largest = golden.logits.iter().flatten().fold(0.0f32, |m, x| m.max(x.abs()));
    let mut off = 0.0f32;
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        off = off.max(worst(&rows[*position], want) / largest);
        assert_eq!(top(&rows[*position]), top(want), "{}, {what}, position {position}", golden.name);
    }
    assert!(off <= EXACT, "{}, {what}: {off:e} of the largest logit", golden.name);
    off
}

/// Mean |difference| by mean |logit|, over stored positions and ids that are no padding (bf16_errors.py).
pub fn mean_error(golden: &Golden, rows: &[Vec<f32>]) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        for (got, want) in rows[*position].iter().zip(want).take(golden.vocabulary) {
            off += f64::from(got - want).abs();
            size += f64::from(*want).abs();
        }
    }
    off / size
}

/// Holds the most probable tokens of bf16 activations against the oracle's, where the oracle is sure: its best logit is
/// more than four mean errors before the second. Returns how many positions that are, and how many in all.
pub fn check_top(golden: &Golden, rows: &[Vec<f32>], error: f64, what: &str) -> (usize, usize) {
    let values = golden.logits.iter().flat_map(|row| &row[..golden.vocabulary]);
    let mean = values.clone().map(|x| f64::from(x.abs())).sum::<f64>() / values.count() as f64;
    let mut sure = 0;
    for (want, position) in golden.logits.iter().zip(&golden.positions) {
        let (got, want) = (&rows[*position][..golden.vocabulary], &want[..golden.vocabulary]);
        let best = top(want);
        let others = want.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, x)| *x);
        let margin = f64::from(want[best] - others.fold(f32::NEG_INFINITY, f32::max));
        if margin > 4.0 * error * mean {
            sure += 1;
            assert_eq!(top(got), best, "{}, {what}, position {position}: margin {margin}", golden.name);
        }
    }
    (sure, golden.positions.len())
}

/// Holds goldens in bf16 against what transformers has in bf16: the mean error of each within 1.5 x its, their sum within its.
#[derive(Default)]
pub struct Bf16Sum {
    errors: f64,
    allowed: f64,
}

impl Bf16Sum {
    /// A golden and all its logits.
    pub fn add(&mut self, golden: &Golden, rows: &[Vec<f32>], what: &str) {
        let (model, short) = golden.name.split_once('/').unwrap();
        let file = repository().join("tests/fixtures").join(model).join("bf16_errors.json");
        let all: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let (error, allowed) = (mean_error(golden, rows), all[short]["mean"].as_f64().unwrap());
        let (sure, of) = check_top(golden, rows, error, what);
        println!(
            "{}, {what}: mean error {error:.4}, transformers {allowed:.4}; sure at {sure} of {of}",
            golden.name
        );
        assert!(error <= 1.5 * allowed, "{}, {what}: {error}, transformers {allowed}", golden.name);
        self.errors += error;
        self.allowed += allowed;
    }

    /// All of a run were added.
    pub fn check(&self, what: &str) {
        println!("{what}: {:.4} in sum, transformers {:.4}", self.errors, self.allowed);
        assert!(self.errors <= self.allowed, "{what}: {} in sum, transformers {}", self.errors, self.allowed);
    }
}
