//! Models, runners and golden files for the tests of the device.
#![allow(dead_code, unreachable_pub)] // each test file uses a part
#![allow(clippy::unwrap_used)] // a test's own failures

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Isa, Precision};
use lily_model::testing::{model_in_memory, random_spec};
use lily_model::{Forward, LogitRows, Model, Runner, RunnerOptions, SequenceId};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn fixture(name: &str) -> Arc<Model> {
    Arc::new(Model::open(&repository().join("tests/fixtures").join(name)).unwrap())
}

pub fn random_model(seed: u64) -> Arc<Model> {
    Arc::new(model_in_memory(&random_spec(seed)))
}

pub fn runner(model: &Arc<Model>, threads: usize, isa: Option<Isa>) -> Runner<CpuDevice> {
    runner_with(model, threads, isa, Precision::Exact)
}

pub fn runner_with(
    model: &Arc<Model>,
    threads: usize,
    isa: Option<Isa>,
    precision: Precision,
) -> Runner<CpuDevice> {
    let options = CpuOptions { threads: Some(threads), pin: false, isa, precision, state_bytes: 1 << 30 };
    let device = CpuDevice::new(&model.geometry, model.clone(), &options).unwrap();
    let options = RunnerOptions { context: 8192, max_chunk: 4096, max_decode_rows: 4 };
    Runner::new(model.geometry.clone(), model.weights.clone(), device, options)
}

/// Logits of every position, with chunks of `chunk` tokens and single decode steps from `decode_from` on.
pub fn all_logits(
    runner: &mut Runner<CpuDevice>,
    sequence: SequenceId,
    tokens: &[u32],
    chunk: usize,
    decode_from: usize,
) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let decode_from = decode_from.min(tokens.len());
    for chunk in tokens[..decode_from].chunks(chunk) {
        runner.prefill(sequence, chunk, LogitRows::All).unwrap();
        rows.extend((0..chunk.len()).map(|r| runner.logits(r).to_vec()));
    }
    for token in &tokens[decode_from..] {
        runner.decode(&[(sequence, *token)]).unwrap();
        rows.push(runner.logits(0).to_vec());
    }
    rows
}

pub fn top(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

/// A golden file.
pub struct Golden(Vec<u8>);

impl Golden {
    pub fn all(model: &str) -> Vec<(String, Golden)> {
        let folder = repository().join("tests/fixtures").join(model).join("goldens");
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        let name = |p: &PathBuf| format!("{model}/{}", p.file_stem().unwrap().to_string_lossy());
        files.iter().map(|p| (name(p), Golden(std::fs::read(p).unwrap()))).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

pub fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY })
        .fold(0.0, f32::max)
}
