//! What is checked on a GPU: that its compiler takes every text, every case of every kernel, and whole models. The same on a Mac
//! (`examples/mac_check`) and over a GPU of paper (`crates/lily-emu/examples/metal`). Texts that fail are named, and the rest goes on.

mod whole;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lily_kernels::testing::{Case, gpu_cases};
use lily_kernels::{Activation, SLOTS, bindings, metal_unit};
use lily_model::plan::{MatrixUnit, Profile};
use lily_model::testing::checks::{self, Check, Subject, check};
use lily_model::{DeviceError, Model, SequenceId};

use crate::gpu::{Gpu, Language, QueueKind};
use crate::{Dialect, MetalDevice, MetalOptions, Probed, QueueChoice, alone, probe};

/// A GPU with what its checks need.
pub struct Set<G: Gpu> {
    /// The GPU.
    pub gpu: G,
    /// How texts are compiled for it.
    pub dialect: Dialect,
    fixtures: PathBuf,
}

impl<G: Gpu> Subject for Set<G> {
    type Device = MetalDevice<G>;

    fn fixtures(&self) -> &Path {
        &self.fixtures
    }

    fn profile(&self, activation: Activation) -> Profile {
        let profile = Profile::metal(&self.gpu.facts().name).with_activation(activation);
        match self.dialect.tensors {
            true => Profile { matrix_unit: MatrixUnit::MetalTensor, ..profile },
            false => profile,
        }
    }

    #[allow(clippy::unwrap_used, reason = "a check fails by panicking")]
    fn device(&self, model: &Model, profile: &Profile, state_bytes: usize) -> Self::Device {
        let (weights, packing) = model.weights.packed();
        let options = MetalOptions::new(profile.clone(), self.dialect, state_bytes);
        MetalDevice::new(&self.gpu, &model.geometry, &weights, model, &packing, &options).unwrap()
    }

    fn take_back(device: &mut Self::Device, sequence: SequenceId) -> Result<(), DeviceError> {
        device.take_back(sequence)
    }
}

/// Every text as every language and type of activations that the kernels are written for. A language that the system does not know is
/// said so, and is no failure where an older one is known.
fn compiles<G: Gpu>() -> Vec<Check<Set<G>>> {
    let mut checks = Vec::new();
    for language in Language::ALL {
        for text in bindings::TEXTS {
            let name = format!("compile {} as Metal {}", text.name, language.name());
            checks.push(check(name, move |set: &Set<G>| {
                if language > set.dialect.language {
                    return "this system does not know it".to_owned();
                }
                let of = |activation| {
                    let unit =
                        metal_unit(text, activation, language == Language::V4_0 && set.dialect.tensors);
                    set.gpu.library(&unit, language).err().map(|e| format!("{}: {e}", activation.name()))
                };
                let wrong: Vec<String> = Activation::ALL.into_iter().filter_map(of).collect();
                assert!(wrong.is_empty(), "{}: {}", text.path, wrong.join("\n"));
                "all types of activations".to_owned()
            }));
        }
    }
    checks
}

/// Every case of every kernel, by text and type of activations.
fn kernels<G: Gpu>() -> Vec<Check<Set<G>>> {
    let mut by_text: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in gpu_cases() {
        let name = format!("kernel {} {}", case.dispatch().text.name, case.activation.name());
        by_text.entry(name).or_default().push(case);
    }
    by_text.into_iter().map(|(name, cases)| check(name, move |set| run_cases(set, &cases))).collect()
}

fn run_cases<G: Gpu>(set: &Set<G>, cases: &[Case]) -> String {
    let wrong: Vec<String> = cases.iter().filter_map(|case| complaint(set, case)).collect();
    let first = wrong[..wrong.len().min(4)].join("\n");
    assert!(wrong.is_empty(), "{} of {} cases: {first}", wrong.len(), cases.len());
    format!("{} cases", cases.len())
}

fn complaint<G: Gpu>(set: &Set<G>, case: &Case) -> Option<String> {
    let dispatch = case.dispatch();
    let slots: Vec<u8> = case.slots.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut buffers: Vec<(usize, &[u8])> = Vec::new();
    for (operand, bytes) in case.kernel.operands().iter().zip(&case.operands) {
        buffers.push((dispatch.text.buffer(operand.name)?, &bytes.bytes));
    }
    buffers.extend(dispatch.text.buffer(SLOTS).map(|number| (number, &slots[..])));
    match alone::run(&set.gpu, set.dialect, &dispatch, case.activation, &buffers) {
        Ok(mut after) => {
            after.truncate(case.operands.len());
            case.complaint(&after)
        }
        Err(error) => Some(format!("{:?}: {error}", case.kernel)),
    }
}

/// All checks of a GPU, by these arguments; some of the caller's own come last. Prints 'N passed, N failed' at the end.
pub fn main<G: Gpu>(gpu: Result<G, String>, own: impl FnOnce() -> Vec<Check<Set<G>>>) -> ExitCode {
    let (passed, failed) = gpu.and_then(|gpu| run(gpu, own())).unwrap_or_else(|error| {
        println!("{error}");
        (0, 1)
    });
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn queue(word: &str) -> Result<QueueChoice, String> {
    match word {
        "auto" => Ok(QueueChoice::Auto),
        "classic" => Ok(QueueChoice::Only(QueueKind::Classic)),
        "metal4" => Ok(QueueChoice::Only(QueueKind::Metal4)),
        _ => Err(format!("--queue is {word}: wanted auto, classic or metal4")),
    }
}

fn run<G: Gpu>(gpu: G, own: Vec<Check<Set<G>>>) -> Result<(usize, usize), String> {
    let (mut fixtures, mut only, mut json, mut choice) = (None, None, None, QueueChoice::Auto);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} takes a value"));
        match name.as_str() {
            "--fixtures" => fixtures = Some(PathBuf::from(value?)),
            "--only" => only = Some(value?),
            "--json" => json = Some(PathBuf::from(value?)),
            "--queue" => choice = queue(&value?)?,
            _ => return Err(format!("{name} is not known: wanted --fixtures, --only, --queue or --json")),
        }
    }
    let Probed { gpu, dialect, refused } = probe(&gpu, choice).map_err(|e| e.to_string())?;
    let (facts, queue) = (gpu.facts().clone(), gpu.queue_kind());
    println!(
        "{}, {}, Metal {}, queue: {:?}, tensor operations: {}, working set {} MiB, longest buffer {} MiB",
        facts.name,
        facts.system,
        dialect.language.name(),
        gpu.queue_kind(),
        dialect.tensors,
        facts.working_set >> 20,
        facts.longest_buffer >> 20
    );
    if let Some(refused) = refused {
        println!("no queue of Metal 4: {refused}");
    }
    let set = Set { gpu, dialect, fixtures: checks::fixtures(fixtures)? };
    let all = compiles().into_iter().chain(kernels()).chain(checks::all()).chain(whole::all());
    let mut outcome = checks::run(&set, all.collect(), only.as_deref());
    let last = checks::run(&set, own, None);
    outcome.results.extend(last.results);
    if let Some(file) = json {
        let report = serde_json::json!({
            "device": facts.name, "system": facts.system, "language": dialect.language.name(),
            "tensor_operations": dialect.tensors, "queue": format!("{queue:?}"), "passed": outcome.passed + last.passed,
            "failed": outcome.failed + last.failed, "checks": outcome.results,
        });
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        std::fs::write(&file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok((outcome.passed + last.passed, outcome.failed + last.failed))
}
