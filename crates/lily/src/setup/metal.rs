//! What the Metal device takes from a Mac: its GPU, where machine code is kept, how much memory the system lets a GPU have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(not(target_os = "macos"))]
use anyhow::bail;
use anyhow::{Context, Result, ensure};
use lily_metal::gpu::{Gpu, Power};
use lily_metal::{Dialect, MetalDevice, MetalOptions, Offline, Probed, prefill_chunk};
use lily_model::device::{self, Device};
use lily_model::plan::{self, DecodeShape, MatrixUnit, Plan, Profile, Tail, Target};
use lily_model::{LogitRows, Model, Weights};

use super::bar::Bar;
use super::device::DECODE_ROWS;
use super::memory::readable;
use super::{cuda, wired};
use crate::cli::{MetalFlags, MetalQueue};

/// Contexts that prefill chunks are made for; longer ones take longer launches.
const CHUNK_CONTEXT: usize = 32_768;

/// Of the context's buckets, the one whose kernels are compiled at the start; others differ in few.
const FIRST_CONTEXT: usize = 4096;

/// A GPU, and what a probe has found of it.
pub(crate) struct Opened<G> {
    gpu: G,
    dialect: Dialect,
    /// What a queue of Metal 4 did wrong, where one was tried.
    refused: Option<String>,
}

/// The GPU of this machine.
#[cfg(target_os = "macos")]
pub(crate) type Apple = lily_metal::apple::AppleGpu;

/// None: this system has no Metal.
#[cfg(not(target_os = "macos"))]
pub(crate) type Apple = lily_metal::NoGpu;

/// Opens the GPU.
pub(crate) fn open(flags: MetalFlags) -> Result<Opened<Apple>> {
    Opened::probe(find(archive(|name| std::env::var_os(name)))?, flags)
}

#[cfg(target_os = "macos")]
fn find(archive: Option<PathBuf>) -> Result<Apple> {
    Ok(Apple::open(archive)?)
}

#[cfg(not(target_os = "macos"))]
fn find(_archive: Option<PathBuf>) -> Result<Apple> {
    bail!("Metal is a part of macOS, and this is {}; wanted --device auto, cpu or cuda", std::env::consts::OS)
}

/// The file that keeps machine code between starts: in the user's caches. Without one, kernels are compiled each time.
fn archive(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let home = variable("HOME").map(PathBuf::from).filter(|path| path.is_absolute())?;
    let file = concat!("pipelines-", env!("CARGO_PKG_VERSION"), ".bin");
    Some(home.join("Library/Caches/lily").join(file))
}

impl<G: Gpu> Opened<G> {
    /// Finds out what the system's compiler and the GPU can do.
    fn probe(gpu: G, flags: MetalFlags) -> Result<Self> {
        let probed = lily_metal::probe(&gpu, flags.choice());
        let Probed { gpu, dialect, refused } = match flags.metal_queue {
            Some(MetalQueue::Metal4) => {
                probed.context("--metal-queue metal4; wanted auto or classic here")?
            }
            _ => probed?,
        };
        Ok(Opened { gpu, dialect, refused })
    }

    /// That a queue was tried and did not work.
    pub(super) fn remark(&self) -> Option<String> {
        self.refused
            .as_ref()
            .map(|why| format!("a classic queue, because that of Metal 4 failed its trial: {why}"))
    }

    /// What plans for it are built by.
    pub(super) fn profile(&self) -> Profile {
        let profile = Profile::metal(&self.gpu.facts().name);
        match self.dialect.tensors {
            true => Profile { matrix_unit: MatrixUnit::MetalTensor, ..profile },
            false => profile,
        }
    }

    /// The GPU and its system.
    pub(crate) fn name(&self) -> String {
        let facts = self.gpu.facts();
        format!("{} ({})", facts.name, facts.system)
    }

    /// Bytes that are allocated on the GPU.
    pub(crate) fn allocated(&self) -> usize {
        self.gpu.allocated()
    }

    /// Bytes that the GPU may still use.
    pub(super) fn available(&self) -> usize {
        self.gpu.facts().working_set.saturating_sub(self.gpu.allocated())
    }

    /// Tokens of a prefill chunk of a model.
    pub(super) fn chunk(&self, model: &Model, profile: &Profile) -> Result<usize> {
        let weights = model.weights.packed().0;
        let target = Target { geometry: &model.geometry, weights: &weights, profile };
        Ok(prefill_chunk(target, model.geometry.max_context.min(CHUNK_CONTEXT))?)
    }

    /// What there is to do where so many bytes more are not there.
    pub(super) fn advice(&self, need: usize) -> String {
        wired::advice(self.gpu.facts(), need.saturating_add(self.gpu.allocated()))
    }

    /// Whether a model is worth trying.
    pub(super) fn fits(&self, weights: usize) -> Result<()> {
        let need = weights.saturating_add(cuda::BESIDE_WEIGHTS);
        cuda::fits(&self.gpu.facts().name, weights, self.available()).with_context(|| self.advice(need))
    }

    /// A model on the GPU, with its usual kernels compiled.
    pub(super) fn device(
        &self,
        profile: &Profile,
        model: &Arc<Model>,
        chunk: usize,
        state_bytes: usize,
    ) -> Result<(Weights, Box<dyn Device>)> {
        let bar = Bar::default();
        let watch: device::Watch = Arc::new(move |progress| bar.show(progress));
        let options = MetalOptions {
            watch: Some(watch),
            ..MetalOptions::new(profile.clone(), self.dialect, state_bytes)
        };
        let (weights, packing) = model.weights.packed();
        let made = MetalDevice::new(&self.gpu, &model.geometry, &weights, &**model, &packing, &options);
        let mut made = made.context("the Metal device")?;
        let target = Target { geometry: &model.geometry, weights: &weights, profile };
        made.load(&first_plans(target, chunk)?).context("the Metal device")?;
        Ok((weights, Box::new(made)))
    }

    /// For `lily doctor`: what holds the machine back, and what it lets its GPU use.
    pub(crate) fn describe(&self) -> String {
        let facts = self.gpu.facts();
        let Power { is_low, thermal } = self.gpu.power();
        let low = if is_low { "on" } else { "off" };
        let remark = self.remark().map_or_else(String::new, |remark| format!("; {remark}"));
        format!(
            "{}, {} in one buffer; {}; low power mode {low}, thermal state {}{remark}",
            wired::limit(facts),
            readable(facts.longest_buffer),
            Offline::embedded().describe(&self.gpu, self.dialect),
            thermal.name()
        )
    }
}

/// Bytes and operations in a second that the makers state for a chip, where the table has it: 128 multiply-adds of each core at 1.3 GHz.
pub(crate) fn nominal(profile: &Profile) -> Option<(f64, f64)> {
    let known = profile.cores > 0 && profile.bandwidth > 0.0;
    known.then_some((profile.bandwidth * 1e9, profile.cores as f64 * 2.0 * 128.0 * 1.3e9))
}

/// Plans that between them launch what most answers do.
fn first_plans(target: Target<'_>, chunk: usize) -> Result<Vec<Plan>> {
    let context = target.geometry.max_context.min(FIRST_CONTEXT);
    let mut plans = Vec::new();
    for rows in [chunk, chunk / 8, 33, 1].into_iter().filter(|rows| (1..=context).contains(rows)) {
        plans.push(plan::prefill(target, rows, context, LogitRows::Last)?);
    }
    for slots in [1, DECODE_ROWS] {
        // With the kernels that choose tokens, which are the same for any pools.
        let tail = Tail::Select { entries: 0 };
        plans.push(plan::decode(target, DecodeShape { tail, ..DecodeShape::logits(slots, context) })?);
    }
    ensure!(!plans.is_empty(), "a model of {context} tokens has no plans");
    Ok(plans)
}

#[cfg(test)]
mod tests {
    use lily_engine::{EngineConfig, Renewal};
    use lily_metal::fake::{FakeGpu, Metal4Fault};
    use lily_metal::gpu::{Fault, GpuError, QueueKind};
    use lily_model::testing::{Spec, model_in_memory};
    use lily_model::{Forward, Runner, RunnerOptions};
    use lily_protocol::{Engine as _, Event, GenerationRequest, Limits, Sampling};

    use super::*;

    #[test]
    fn a_mac_says_what_it_lets_its_gpu_use() {
        let gpu = FakeGpu::new().with_facts(|facts| {
            facts.name = "Apple M2 Max".into();
            facts.working_set = 21 << 30;
        });
        let opened = Opened::probe(gpu, MetalFlags::default()).unwrap();
        assert_eq!(opened.profile().name, "metal:m2-max");
        assert_eq!(nominal(&opened.profile()), Some((400e9, 38.0 * 332.8e9)));
        assert_eq!(nominal(&Profile::metal("Apple M9")), None);
        assert!(opened.fits(18 << 30).is_ok());
        let refused = format!("{:#}", opened.fits(20 << 30).unwrap_err());
        for words in ["Apple M2 Max", "20.0 GiB", "21.0 GiB", "iogpu.wired_limit_mb=22528", "fewer bits"] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        let said = opened.describe();
        assert!(said.contains("kernels compiled at the start (none were compiled with"), "{said}");
        assert!(
            said.contains("21.0 GiB of 32.0 GiB for the GPU") && said.contains("thermal state nominal"),
            "{said}"
        );
    }

    #[test]
    fn a_model_is_loaded_with_its_usual_kernels() {
        let gpu = FakeGpu::new();
        let opened = Opened::probe(gpu.clone(), MetalFlags::default()).unwrap();
        let model = Arc::new(model_in_memory(&Spec::tiny()));
        let profile = opened.profile();
        let chunk = opened.chunk(&model, &profile).unwrap();
        let (_, device) = opened.device(&profile, &model, chunk, 1 << 28).unwrap();
        assert!(gpu.compiled().1 > 10, "{:?}", gpu.compiled());
        assert!(device.describe().contains("Metal 4.0"), "{}", device.describe());
    }

    /// From a request to the GPU and back, over a GPU that goes away in the middle of an answer.
    #[test]
    fn a_lost_gpu_fails_the_answer_and_the_next_request_is_served_by_another_device() {
        let (gpu, model) = (FakeGpu::new(), Arc::new(model_in_memory(&Spec::tiny())));
        let options = RunnerOptions { context: 1024, max_chunk: 64, max_decode_rows: DECODE_ROWS };
        let make = {
            let (gpu, model) = (gpu.clone(), model.clone());
            move || -> Result<Box<dyn Forward>> {
                let opened = Opened::probe(gpu.clone(), MetalFlags::default())?;
                let (weights, device) = opened.device(&opened.profile(), &model, 64, 1 << 28)?;
                Ok(Box::new(Runner::new(model.geometry.clone(), weights, device, options)))
            }
        };
        let limits = Limits { context: 1024, model_context: 1024, vocabulary: model.geometry.vocab };
        let config = EngineConfig {
            chunk: 64,
            state_memory: 1 << 27,
            cache_memory: 1 << 27,
            ..EngineConfig::new(limits)
        };
        let forward = make().unwrap();
        let renewal = Renewal { idle: None, make: Box::new(move || make().map_err(|e| format!("{e:#}"))) };
        let engine = lily_engine::start_with(config, forward, Some(renewal)).unwrap();
        let request = |max_tokens| GenerationRequest {
            prompt: vec![1; 20],
            text: None,
            max_tokens: Some(max_tokens),
            sampling: Sampling::greedy(),
            logprobs: None,
            prompt_logprobs: None,
            ignore_end: true,
        };
        let (compiled, resident) = (gpu.compiled().1, gpu.kept().0);
        let mut generation = engine.submit(request(900)).unwrap();
        let mut failed = None;
        while let Some(event) = generation.next_blocking() {
            match event {
                // Once it answers: some steps on, the GPU is removed.
                Event::Tokens(_) => gpu.fail(|faults| {
                    let removed = GpuError::new(Fault::Lost, "removed");
                    let at = gpu.submissions() + 5;
                    faults.submissions.is_empty().then(|| faults.submissions.push((at, removed)));
                }),
                Event::Failed(sentence) => failed = Some(sentence),
                Event::Finished { .. } => panic!("it was finished"),
                _ => {}
            }
        }
        let failed = failed.unwrap();
        assert!(failed.starts_with("the device is lost: decode") && failed.ends_with("removed"), "{failed}");
        let mut generation = engine.submit(request(8)).unwrap();
        let end = std::iter::from_fn(|| generation.next_blocking()).last();
        assert!(matches!(end, Some(Event::Finished { .. })), "{end:?}");
        assert!(gpu.compiled().1 >= 2 * compiled && gpu.kept().0 == resident, "everything was made again");
        engine.shutdown(true);
        assert_eq!(gpu.wrongs(), [""; 0]);
    }

    #[test]
    fn a_queue_that_throws_leaves_the_classic_one_and_is_reported() {
        let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
        gpu.fail(|faults| faults.metal4 = Some(Metal4Fault::ThrowsWhenUsed));
        let on = |metal_queue| Opened::probe(gpu.clone(), MetalFlags { metal_queue });
        for queue in [None, Some(MetalQueue::Auto)] {
            let opened = on(queue).unwrap();
            assert_eq!(opened.gpu.queue_kind(), QueueKind::Classic);
            let said = opened.describe();
            assert!(
                said.contains("a classic queue, because") && said.contains("an exception of paper"),
                "{said}"
            );
        }
        let classic = on(Some(MetalQueue::Classic)).unwrap();
        assert_eq!((classic.gpu.queue_kind(), classic.remark()), (QueueKind::Classic, None));
        let refused = format!("{:#}", on(Some(MetalQueue::Metal4)).err().unwrap());
        assert!(
            refused.contains("--metal-queue metal4") && refused.contains("an exception of paper"),
            "{refused}"
        );
    }

    #[test]
    fn machine_code_is_kept_in_the_users_caches() {
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/Users/a"));
        let file = archive(home).unwrap();
        assert!(file.starts_with("/Users/a/Library/Caches/lily"), "{}", file.display());
        assert_eq!(archive(|_| None), None);
    }

    #[cfg(not(target_os = "macos"))]
    #[test]
    fn elsewhere_there_is_no_metal() {
        let refused = open(MetalFlags::default()).err().unwrap().to_string();
        assert!(refused.contains("macOS") && refused.contains("--device auto"), "{refused}");
    }
}
