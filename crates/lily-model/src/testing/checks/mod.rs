//! Whole models on a device that runs the texts of GPUs: against the oracle, and against itself. The same for every such device; each
//! brings its own example or test that runs them.
#![allow(clippy::unwrap_used, reason = "checks fail by panicking, which is caught")]

mod bits;
mod choosing;
mod goldens;
mod hand_over;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::device::Device;
use crate::plan::{Activation, Profile};
use crate::testing::{Spec, model_in_memory};
use crate::{DeviceError, Forward, Model, Runner, RunnerOptions, SequenceId};

/// A device to be checked.
pub trait Subject: 'static {
    /// Its type.
    type Device: Device;

    /// The folder that holds `nano` and `micro`.
    fn fixtures(&self) -> &Path;

    /// What plans for it are built by.
    fn profile(&self, activation: Activation) -> Profile;

    /// A device with a model, whose states may take so many bytes.
    fn device(&self, model: &Model, profile: &Profile, state_bytes: usize) -> Self::Device;

    /// Takes the last step of a sequence back.
    fn take_back(device: &mut Self::Device, sequence: SequenceId) -> Result<(), DeviceError>;
}

/// What a check is called, and what it does: a sentence for people, or a panic.
pub type Check<S> = (String, Box<dyn Fn(&S) -> String>);

type Bits = Vec<Vec<u32>>;

/// All of them.
pub fn all<S: Subject>() -> Vec<Check<S>> {
    goldens::all().into_iter().chain(bits::all()).collect()
}

/// A check by its name.
pub fn check<S>(name: impl Into<String>, run: impl Fn(&S) -> String + 'static) -> Check<S> {
    (name.into(), Box::new(run))
}

/// A model of the fixtures.
pub fn fixture<S: Subject>(set: &S, name: &str) -> Arc<Model> {
    Arc::new(Model::open(&set.fixtures().join(name)).unwrap())
}

/// A model on the device.
pub fn runner<S: Subject>(set: &S, model: &Model, profile: &Profile) -> Runner<S::Device> {
    runner_on(model, set.device(model, profile, 1 << 28))
}

/// A model on a device that has it.
pub fn runner_on<D: Device>(model: &Model, device: D) -> Runner<D> {
    let options = RunnerOptions { context: 8192, max_chunk: 4096, max_decode_rows: 4 };
    Runner::new(model.geometry.clone(), model.weights.packed().0, device, options)
}

/// A random model of small sizes, whose key heads the chunk-parallel form of DeltaNet takes.
pub fn tiny() -> Arc<Model> {
    let mut spec = Spec::tiny();
    spec.geometry.delta.key_dim = 32;
    Arc::new(model_in_memory(&spec))
}

/// Blocks of attention shorter than any real device's, so that short prompts have several.
pub fn short_blocks(profile: Profile) -> Profile {
    Profile { block_attention_above: 64, attention_block: 64, ..profile }
}

/// The bits of the last run's logits.
pub fn logits<D: Device>(runner: &Runner<D>, rows: usize) -> Vec<Vec<u32>> {
    (0..rows).map(|row| crate::testing::oracle::bits(runner.logits(row))).collect()
}

/// What the last panic said.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// What checks found.
#[derive(Default)]
pub struct Outcome {
    /// How many held.
    pub passed: usize,
    /// How many did not.
    pub failed: usize,
    /// Each with its name, whether it held, its seconds and its sentence.
    pub results: Vec<serde_json::Value>,
}

/// Runs the checks whose names hold the word, all of them to the end, and says of each how it went.
pub fn run<S: Subject>(set: &S, checks: Vec<Check<S>>, only: Option<&str>) -> Outcome {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
        let place = panic.location().map_or(String::new(), |l| format!("{}:{}: ", l.file(), l.line()));
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = format!("{place}{text}");
    }));
    let mut outcome = Outcome::default();
    for (name, check) in checks.into_iter().filter(|(name, _)| only.is_none_or(|word| name.contains(word))) {
        let began = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| check(set)));
        let seconds = began.elapsed().as_secs_f64();
        let (word, detail) = match &done {
            Ok(detail) => ("ok  ", detail.clone()),
            Err(_) => ("FAIL", PANIC.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        };
        *if done.is_ok() { &mut outcome.passed } else { &mut outcome.failed } += 1;
        println!("{word} {name}: {detail} ({seconds:.1} s)");
        outcome.results.push(serde_json::json!({
            "name": name, "ok": done.is_ok(), "seconds": seconds, "detail": detail,
        }));
    }
    let _ = std::panic::take_hook();
    outcome
}

/// The folder of fixtures that was named, or the repository's.
///
/// # Errors
/// Where it holds none.
pub fn fixtures(named: Option<PathBuf>) -> Result<PathBuf, String> {
    let folder = named.unwrap_or_else(|| PathBuf::from("tests/fixtures"));
    match folder.join("nano").is_dir() {
        true => Ok(folder),
        false => Err(format!("{} holds no models: name tests/fixtures by --fixtures", folder.display())),
    }
}
