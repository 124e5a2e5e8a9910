//! A model on a device behind an engine.

use anyhow::{Context, Result, bail, ensure};
use lily_cpu::{CpuDevice, CpuOptions};
use lily_engine::{CutMarkers, EngineConfig, LocalEngine};
use lily_model::device::Device;
use lily_model::plan::{Activation, Profile};
use lily_model::{Runner, RunnerOptions, Weights};
use lily_protocol::Limits;

use super::memory::{Budget, readable};
use super::model::LoadedModel;
use crate::cli::{self, MemoryFlags, ModelFlags, Precision};
use crate::terminal::remark;

/// Tokens of a prefill chunk: an expert's weights, once unpacked, meet 16 rows of it on average, and those of 256 experts are
/// read once for all. Prompts of 512 tokens take 2 to 3% longer in chunks of 256, those of 8,192 a tenth (docs/performance.md);
/// a longer chunk is a longer wait for whoever else wants an answer.
pub(crate) const PREFILL_CHUNK: usize = 512;

/// Rows of a decode step: sequences that advance together share the reading of weights.
pub(crate) const DECODE_ROWS: usize = 4;

/// More threads than processors are put up with, for comparisons, but not without bound.
const THREADS_PER_PROCESSOR: usize = 16;
const ALWAYS_ALLOWED_THREADS: usize = 64;

/// Shuffles what the emulator may run in any order: another order each stage, the same each time.
#[cfg(feature = "emu")]
const EMULATOR_SEED: u32 = 1;

/// A running engine, and what to say about it.
pub(crate) struct Started {
    pub(crate) engine: LocalEngine,
    /// `CPU, 2 threads, AVX-512`.
    pub(crate) device: String,
    pub(crate) budget: Budget,
}

/// What plans are built by, for the device and the precision that the flags ask for.
pub(crate) fn profile(flags: &ModelFlags) -> Profile {
    let activation = match flags.precision() {
        Precision::Exact | Precision::Fast => Activation::F32,
        Precision::Bf16 => Activation::Bf16,
    };
    match flags.device {
        cli::Device::Auto | cli::Device::Cpu => Profile::cpu(),
        cli::Device::Emu => Profile::emulator().with_activation(activation),
    }
}

/// A model on the device that the flags ask for.
pub(crate) fn runner(
    model: &std::sync::Arc<lily_model::Model>,
    flags: &ModelFlags,
    options: RunnerOptions,
    state_bytes: usize,
) -> Result<Runner<Box<dyn Device>>> {
    check_threads(flags.threads.map(usize::from))?;
    super::warm::warm(model);
    let (weights, device) = match flags.device {
        cli::Device::Auto | cli::Device::Cpu => (model.weights.clone(), cpu(model, flags, state_bytes)?),
        cli::Device::Emu => emulator(model, flags, state_bytes)?,
    };
    Ok(Runner::new(model.geometry.clone(), weights, device, options))
}

fn cpu(
    model: &std::sync::Arc<lily_model::Model>,
    flags: &ModelFlags,
    state_bytes: usize,
) -> Result<Box<dyn Device>> {
    let precision = match flags.precision() {
        Precision::Exact => lily_cpu::Precision::Exact,
        Precision::Fast => lily_cpu::Precision::Fast,
        Precision::Bf16 => {
            bail!("--precision bf16 is for --device emu; the CPU computes with --precision exact or fast")
        }
    };
    let options = cpu_options(flags, precision, state_bytes);
    Ok(Box::new(CpuDevice::new(&model.geometry, model.clone(), &options).context("the CPU device")?))
}

/// How the CPU device works.
pub(crate) fn cpu_options(
    flags: &ModelFlags,
    precision: lily_cpu::Precision,
    state_bytes: usize,
) -> CpuOptions {
    CpuOptions { threads: flags.threads.map(usize::from), pin: true, isa: None, precision, state_bytes }
}

#[cfg(feature = "emu")]
fn emulator(
    model: &std::sync::Arc<lily_model::Model>,
    flags: &ModelFlags,
    state_bytes: usize,
) -> Result<(Weights, Box<dyn Device>)> {
    if flags.precision() == Precision::Fast {
        bail!("--precision fast is for --device cpu; the emulator computes with --precision exact or bf16");
    }
    let threads = flags.threads.map(usize::from);
    let options = lily_emu::EmuOptions { profile: profile(flags), threads, seed: EMULATOR_SEED, state_bytes };
    let (weights, packing) = model.weights.packed();
    let device = lily_emu::EmuDevice::new(&model.geometry, model.clone(), packing, &options);
    Ok((weights, Box::new(device.context("the emulator")?)))
}

#[cfg(not(feature = "emu"))]
fn emulator(
    _model: &std::sync::Arc<lily_model::Model>,
    _flags: &ModelFlags,
    _state_bytes: usize,
) -> Result<(Weights, Box<dyn Device>)> {
    bail!(
        "--device emu is not in this build: build with `cargo build --features emu`, which takes x86-64 Linux and clang 19"
    )
}

/// Waking hundreds of threads for each launch, on few processors, makes a token take seconds.
fn check_threads(asked: Option<usize>) -> Result<()> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let most = (THREADS_PER_PROCESSOR * processors).max(ALWAYS_ALLOWED_THREADS);
    ensure!(
        asked.is_none_or(|threads| threads <= most),
        "--threads is {}, and this process may use {processors} processors: wanted at most {most}, and no more than \
         {processors} is of use",
        asked.unwrap_or_default()
    );
    Ok(())
}

/// Starts an engine for `parallel` requests at once, with room for `queue` more.
pub(crate) fn start(
    loaded: &LoadedModel,
    flags: &ModelFlags,
    memory: &MemoryFlags,
    parallel: usize,
    queue: usize,
) -> Result<Started> {
    let model = &loaded.model;
    let cache = memory.cache_memory.map(|size| size.0);
    let budget = Budget::for_model(model, &profile(flags), PREFILL_CHUNK, memory.context, cache)?;
    let options =
        RunnerOptions { context: budget.context, max_chunk: PREFILL_CHUNK, max_decode_rows: DECODE_ROWS };
    let runner = runner(model, flags, options, budget.state)?;
    let device = runner.device().describe();
    let limits = Limits {
        context: budget.context,
        model_context: model.geometry.max_context,
        vocabulary: loaded.text.tokenizer().size(),
    };
    let markers = loaded.text.cut_markers();
    let config = EngineConfig {
        end_tokens: end_tokens(loaded),
        chunk: PREFILL_CHUNK,
        cut_markers: CutMarkers {
            end_of_turn: markers.end_of_turn,
            assistant_header: markers.assistant_header,
        },
        parallel,
        queue,
        cache_memory: budget.cache,
        state_memory: budget.state - budget.cache,
        ..EngineConfig::new(limits)
    };
    let engine = lily_engine::start(config, Box::new(runner)).context("the engine did not start")?;
    if budget.shortened {
        remark(format_args!(
            "context: {} tokens, which is what memory allows ({} for states; the model's limit is {}); --context sets it",
            budget.context,
            readable(budget.state),
            model.geometry.max_context
        ));
    }
    Ok(Started { engine, device, budget })
}

/// The union of what config, generation config, tokenizer and template name.
fn end_tokens(loaded: &LoadedModel) -> Vec<u32> {
    let mut ids = loaded.model.end_tokens.clone();
    ids.extend(loaded.text.end_tokens());
    ids.sort_unstable();
    ids.dedup();
    ids
}
