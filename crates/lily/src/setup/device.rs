//! Which device a model runs on, and the model on it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lily_cpu::{CpuDevice, CpuOptions, Isa};
use lily_cuda::{Gpu, KernelSet, Missing};
use lily_model::device::{Device, Trace};
use lily_model::plan::{Activation, Plan, Profile};
use lily_model::{Model, Runner, RunnerOptions, Weights};

use super::memory::machine;
use super::metal::{Apple, Opened};
use super::warm::warm;
use super::{cuda, metal, trace};
use crate::cli::{self, ModelFlags, Precision, TraceFlags};
use crate::terminal::remark;

/// Tokens of a prefill chunk of the CPU device: an expert's weights, once unpacked, meet 16 rows of it on average, and those of 256
/// experts are read once for all. Prompts of 512 tokens take 2 to 3% longer in chunks of 256, those of 8,192 a tenth
/// (docs/performance.md); a longer chunk is a longer wait for whoever else wants an answer.
const PREFILL_CHUNK: usize = 512;

/// Rows of a decode step: sequences that advance together share the reading of weights.
pub(crate) const DECODE_ROWS: usize = 4;

/// More threads than processors are put up with, for comparisons, but not without bound.
const THREADS_PER_PROCESSOR: usize = 16;
const ALWAYS_ALLOWED_THREADS: usize = 64;

/// Shuffles what the emulator may run in any order: another order each stage, the same each time.
#[cfg(feature = "emu")]
const EMULATOR_SEED: u32 = 1;

/// A device that was decided on.
pub(crate) struct Chosen {
    pub(crate) kind: Kind,
    pub(crate) precision: Precision,
    /// What plans are built by.
    pub(crate) profile: Profile,
    /// Tokens of a prefill chunk.
    pub(crate) chunk: usize,
    /// Free bytes of the memory that it uses.
    pub(crate) available: usize,
    threads: Option<usize>,
    isa: Option<Isa>,
    kernels: KernelSet,
    /// Why it is not a GPU.
    fallback: Option<Fallback>,
    /// Who is told when its stages ran.
    pub(super) trace: Option<Trace>,
}

/// Why `auto` took the CPU.
struct Fallback {
    reason: String,
    /// There is no driver: most machines have no such GPU, and miss nothing.
    is_usual: bool,
}

impl Fallback {
    fn new(reason: &anyhow::Error) -> Self {
        match reason.downcast_ref() {
            Some(Missing::Driver) => Fallback { reason: "no NVIDIA driver".to_owned(), is_usual: true },
            _ => Fallback { reason: format!("{reason:#}"), is_usual: false },
        }
    }
}

/// The devices.
pub(crate) enum Kind {
    /// The processor.
    Cpu,
    /// The emulator.
    Emu,
    /// An NVIDIA GPU.
    Cuda(Gpu),
    /// The GPU of a Mac.
    Metal(Opened<Apple>),
}

/// The device that the flags ask for; with `auto` a GPU that this model fits, or else the CPU.
pub(crate) fn choose(flags: &ModelFlags, model: &Model) -> Result<Chosen> {
    let threads = flags.threads.map(usize::from);
    check_threads(threads)?;
    ensure!(
        threads.is_none() || !matches!(flags.device, cli::Device::Cuda(_) | cli::Device::Metal),
        "--threads is for the CPU and the emulator; wanted with it: --device cpu"
    );
    ensure!(
        flags.isa.is_none() || matches!(flags.device, cli::Device::Auto | cli::Device::Cpu),
        "--isa is the CPU's; wanted with it: --device cpu"
    );
    ensure!(
        flags.kernels.is_none() || matches!(flags.device, cli::Device::Auto | cli::Device::Cuda(_)),
        "--kernels is an NVIDIA GPU's; wanted with it: --device cuda"
    );
    ensure!(
        flags.metal.metal_queue.is_none() || may_be_metal(flags, cfg!(target_os = "macos")),
        "--metal-queue is for the GPU of a Mac; wanted with it: --device metal"
    );
    match flags.device {
        cli::Device::Cpu => Chosen::cpu(flags, threads),
        cli::Device::Auto if flags.isa.is_some() => Chosen::cpu(flags, threads),
        cli::Device::Emu => Chosen::emulator(flags.precision, threads),
        cli::Device::Cuda(number) => {
            let gpu = cuda::open(number.into()).with_context(|| format!("--device cuda:{number}"))?;
            Chosen::cuda(gpu, flags.precision, flags.kernels)
        }
        cli::Device::Metal => {
            Chosen::metal(metal::open(flags.metal).context("--device metal")?, flags.precision, model)
        }
        cli::Device::Auto => {
            let weights = usize::try_from(model.checkpoint.total_bytes()).unwrap_or(usize::MAX);
            match automatic(flags, model, weights) {
                Ok(chosen) => Ok(chosen),
                // Nothing else has such a queue.
                Err(reason) if flags.metal.metal_queue == Some(cli::MetalQueue::Metal4) => {
                    Err(reason.context("--device auto"))
                }
                Err(reason) => {
                    let fallback = Some(Fallback::new(&reason));
                    Ok(Chosen { fallback, ..Chosen::cpu(flags, threads)? })
                }
            }
        }
    }
}

/// Whether a flag of the Metal device can have an effect.
fn may_be_metal(flags: &ModelFlags, is_mac: bool) -> bool {
    match flags.device {
        cli::Device::Metal => true,
        cli::Device::Auto => is_mac && flags.isa.is_none() && flags.kernels.is_none(),
        _ => false,
    }
}

/// The first GPU, if nothing speaks against it.
fn automatic(flags: &ModelFlags, model: &Model, weights: usize) -> Result<Chosen> {
    ensure!(flags.precision != Some(Precision::Fast), "--precision fast is the CPU's");
    if cfg!(target_os = "macos") && flags.kernels.is_none() {
        let opened = metal::open(flags.metal)?;
        opened.fits(weights)?;
        return Chosen::metal(opened, flags.precision, model);
    }
    let chosen = Chosen::cuda(cuda::open(0)?, flags.precision, flags.kernels)?;
    let Kind::Cuda(gpu) = &chosen.kind else { bail!("the device is no GPU") };
    cuda::fits(&gpu.found().name, weights, chosen.available)?;
    Ok(chosen)
}

impl Chosen {
    fn cpu(flags: &ModelFlags, threads: Option<usize>) -> Result<Self> {
        let precision = flags.precision.unwrap_or(Precision::Fast);
        if precision == Precision::Bf16 {
            bail!(
                "--precision bf16 is for --device metal, cuda and emu; the CPU computes with --precision exact or fast"
            );
        }
        let profile = Profile::cpu();
        Ok(Chosen {
            kind: Kind::Cpu,
            precision,
            profile,
            chunk: PREFILL_CHUNK,
            available: machine().0,
            threads,
            isa: flags.isa,
            kernels: KernelSet::Native,
            fallback: None,
            trace: None,
        })
    }

    fn emulator(precision: Option<Precision>, threads: Option<usize>) -> Result<Self> {
        let precision = precision.unwrap_or(Precision::Exact);
        let profile = Profile::emulator().with_activation(activation("the emulator", precision)?);
        Ok(Chosen {
            kind: Kind::Emu,
            precision,
            profile,
            chunk: PREFILL_CHUNK,
            available: machine().0,
            threads,
            isa: None,
            kernels: KernelSet::Native,
            fallback: None,
            trace: None,
        })
    }

    fn cuda(gpu: Gpu, precision: Option<Precision>, kernels: Option<cli::Kernels>) -> Result<Self> {
        let precision = precision.unwrap_or(Precision::Bf16);
        let profile = gpu.profile().with_activation(activation("a GPU", precision)?);
        let available = gpu.memory()?.0;
        let chunk = profile.prefill_chunk;
        Ok(Chosen {
            kind: Kind::Cuda(gpu),
            precision,
            profile,
            chunk,
            available,
            threads: None,
            isa: None,
            kernels: match kernels {
                Some(cli::Kernels::Shared) => KernelSet::Shared,
                Some(cli::Kernels::Native) | None => KernelSet::Native,
            },
            fallback: None,
            trace: None,
        })
    }

    fn metal(opened: Opened<Apple>, precision: Option<Precision>, model: &Model) -> Result<Self> {
        let precision = precision.unwrap_or(Precision::Bf16);
        let profile = opened.profile();
        // Of 16 bits the type that this GPU computes with.
        let profile = match activation("a GPU", precision)? {
            Activation::F32 => profile.with_activation(Activation::F32),
            Activation::Bf16 | Activation::F16 => profile,
        };
        let (chunk, available) = (opened.chunk(model, &profile)?, opened.available());
        Ok(Chosen {
            kind: Kind::Metal(opened),
            precision,
            profile,
            chunk,
            available,
            threads: None,
            isa: None,
            kernels: KernelSet::Native,
            fallback: None,
            trace: None,
        })
    }

    /// The same, with its stages' times written to a file where the flags ask for that.
    pub(crate) fn traced(self, flags: &TraceFlags) -> Result<Self> {
        let Some(path) = &flags.trace else { return Ok(self) };
        let device = match &self.kind {
            Kind::Cpu => "the CPU".to_owned(),
            Kind::Metal(opened) => opened.name(),
            Kind::Cuda(gpu) => return Err(cannot_tell(path, &gpu.found().name)),
            Kind::Emu => return Err(cannot_tell(path, "the emulator")),
        };
        Ok(Chosen { trace: Some(trace::begin(path, &device)?), ..self })
    }

    /// What a device says of itself, and why it is not a GPU if it might have been one.
    pub(crate) fn describe(&self, device: &str) -> String {
        match (&self.fallback, self.no_metal4()) {
            (Some(fallback), _) => format!("{device} (no GPU: {})", fallback.reason),
            (None, Some(remark)) => format!("{device} ({remark})"),
            (None, None) => device.to_owned(),
        }
    }

    /// Why it is not the queue of Metal 4, where that was tried.
    fn no_metal4(&self) -> Option<String> {
        match &self.kind {
            Kind::Metal(opened) => opened.remark(),
            Kind::Cpu | Kind::Emu | Kind::Cuda(_) => None,
        }
    }

    /// Why `auto` took the CPU, if it did.
    pub(crate) fn no_gpu(&self) -> Option<&str> {
        self.fallback.as_ref().map(|fallback| fallback.reason.as_str())
    }

    /// Says why it is not a GPU, where that is not the usual reason: for commands that do not show [`Chosen::describe`].
    pub(crate) fn explain(&self) {
        if let Some(fallback) = self.fallback.as_ref().filter(|fallback| !fallback.is_usual) {
            remark(format_args!("--device auto: the CPU, because {}", fallback.reason));
        }
        if let Some(why) = self.no_metal4() {
            remark(why);
        }
    }

    /// What there is to do where `need` bytes in all are more than there is, beside what is true of every device.
    pub(crate) fn advice(&self, need: usize) -> Option<String> {
        match &self.kind {
            Kind::Metal(opened) => Some(opened.advice(need)),
            Kind::Cpu | Kind::Emu | Kind::Cuda(_) => None,
        }
    }

    /// A model on the device.
    pub(crate) fn runner(
        &self,
        model: &Arc<Model>,
        options: RunnerOptions,
        state_bytes: usize,
    ) -> Result<Runner<Box<dyn Device>>> {
        let (weights, mut device): (Weights, Box<dyn Device>) = match &self.kind {
            Kind::Cpu => {
                warm(model);
                let options = self.cpu_options(state_bytes);
                let device = CpuDevice::new(&model.geometry, model.clone(), &options);
                (model.weights.clone(), Box::new(device.context("the CPU device")?))
            }
            Kind::Emu => self.emulated(model, state_bytes)?,
            Kind::Cuda(gpu) => cuda::device(gpu, self.kernels, &self.profile, model, state_bytes)?,
            Kind::Metal(opened) => opened.device(&self.profile, model, self.chunk, state_bytes)?,
        };
        if let Some(trace) = &self.trace {
            device.trace(trace.clone()).context("--trace")?;
        }
        Ok(Runner::new(model.geometry.clone(), weights, device, options))
    }

    /// Bytes that the device's kernels take for themselves while they run this plan.
    pub(crate) fn kernel_bytes(&self, plan: &Plan) -> Result<usize> {
        match &self.kind {
            Kind::Cuda(gpu) => Ok(lily_cuda::scratch_bytes(plan, self.kernels, gpu.found().cores)?),
            Kind::Cpu | Kind::Emu | Kind::Metal(_) => Ok(0),
        }
    }

    /// How the CPU device works, or would.
    pub(crate) fn cpu_options(&self, state_bytes: usize) -> CpuOptions {
        let precision = match self.precision {
            Precision::Fast => lily_cpu::Precision::Fast,
            Precision::Exact | Precision::Bf16 => lily_cpu::Precision::Exact,
        };
        CpuOptions { threads: self.threads, pin: true, isa: self.isa, precision, state_bytes }
    }

    #[cfg(feature = "emu")]
    fn emulated(&self, model: &Arc<Model>, state_bytes: usize) -> Result<(Weights, Box<dyn Device>)> {
        let (profile, threads) = (self.profile.clone(), self.threads);
        let options = lily_emu::EmuOptions { profile, threads, seed: EMULATOR_SEED, state_bytes };
        let (weights, packing) = model.weights.packed();
        let device = lily_emu::EmuDevice::new(&model.geometry, model.clone(), packing, &options);
        Ok((weights, Box::new(device.context("the emulator")?)))
    }

    #[cfg(not(feature = "emu"))]
    fn emulated(&self, _model: &Arc<Model>, _state_bytes: usize) -> Result<(Weights, Box<dyn Device>)> {
        bail!(
            "--device emu is not in this build: build with `cargo build --features emu`, which takes x86-64 Linux and clang 19"
        )
    }
}

fn cannot_tell(path: &Path, device: &str) -> anyhow::Error {
    anyhow!(
        "--trace {}: {device} does not tell when its stages ran; wanted with it: --device cpu or metal",
        path.display()
    )
}

/// The type of activations on a device that runs the kernels of GPUs.
fn activation(device: &str, precision: Precision) -> Result<Activation> {
    match precision {
        Precision::Exact => Ok(Activation::F32),
        Precision::Bf16 => Ok(Activation::Bf16),
        Precision::Fast => Err(anyhow!(
            "--precision fast is for --device cpu; {device} computes with --precision exact or bf16"
        )),
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_queue_is_for_who_may_get_the_gpu_of_a_mac() {
        for (arguments, on_mac, elsewhere) in [
            ("--device metal", true, true),
            ("--device auto", true, false),
            ("--device auto --isa portable", false, false),
            ("--device auto --kernels shared", false, false),
            ("--device cpu", false, false),
            ("--device cuda", false, false),
            ("--device emu", false, false),
        ] {
            let command = ["lily", "run", "x"].into_iter().chain(arguments.split_whitespace());
            let Command::Run(flags) = Cli::try_parse_from(command).unwrap().command else { panic!("run") };
            let may = [true, false].map(|is_mac| may_be_metal(&flags.model, is_mac));
            assert_eq!(may, [on_mac, elsewhere], "{arguments}");
        }
    }
}
