//! How much memory there is, and what fits into it: decided before anything is allocated.

use anyhow::{Result, anyhow, bail};
use lily_cuda::KernelSet;
use lily_model::plan::{self, MatrixUnit, Profile, Target};
use lily_model::{Geometry, LogitRows, Model};

use super::device::{Chosen, Kind};

/// Kept free for the system and for other programs: this share of the memory, and at least this much.
const RESERVE_SHARE: usize = 16;
const LEAST_RESERVE: usize = 256 << 20;

/// Of a GPU's memory, where other programs do not come and go, and what is there was found with the context open: kernels, CUDA
/// graphs, logits of several rows.
const GPU_RESERVE_SHARE: usize = 64;

/// What the driver of an NVIDIA GPU takes for a process: its context, machine code, graphs. An H200 had 21.82 to 21.84 GiB in use with the
/// whole model and 131,072 tokens, 0.67 to 0.69 of it neither weights, states nor working space (docs/gpu/native-2026-12-01.md).
const CUDA_DRIVER: usize = 704 << 20;

/// Tokens of context that a model is of use with, for those who did not say how many they want.
const USEFUL_CONTEXT: usize = 8192;

/// The largest prefix cache that is taken without being asked for.
const DEFAULT_CACHE: usize = 4 << 30;

/// What a model may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Tokens of context.
    pub(crate) context: usize,
    /// Why the context is what it is, where it is less than the model's limit and nobody asked for it.
    pub(crate) shortened: bool,
    /// Bytes for live sequences and cached states together.
    pub(crate) state: usize,
    /// Of these, for the prefix cache.
    pub(crate) cache: usize,
}

/// The memory that a device uses.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Free now.
    available: usize,
    /// Of it, what is kept free.
    reserve: usize,
    /// What the device's kernels take beside a plan's activations.
    kernels: usize,
}

/// Available and total memory, in bytes, within the limits of a container.
pub(crate) fn machine() -> (usize, usize) {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let container = system.cgroup_limits().map(|limits| (bytes(limits.total_memory), bytes(limits.rss)));
    within(container, bytes(system.available_memory()), bytes(system.total_memory()))
}

/// The same, given a container's limit and what its processes hold. A container counts the files that the system keeps in memory as
/// used, the model's own weights among them, and gives them up when processes need room: they count as available here, as they do
/// on a machine without containers.
fn within(container: Option<(usize, usize)>, available: usize, total: usize) -> (usize, usize) {
    match container {
        Some((limit, held)) => {
            let limit = limit.clamp(1, total.max(1));
            (available.min(limit.saturating_sub(held).max(1)), limit)
        }
        None => (available, total),
    }
}

/// The most memory that this process has had at once, files that are mapped included, where the system says it (Linux).
pub(crate) fn process_peak() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

impl Budget {
    /// Divides the machine's memory, or says what is missing.
    pub(crate) fn for_model(
        model: &Model,
        device: &Chosen,
        chunk: usize,
        asked_context: Option<u32>,
        asked_cache: Option<usize>,
    ) -> Result<Budget> {
        let has_own = matches!(device.kind, Kind::Cuda(_) | Kind::Metal(_));
        let reserve = reserve(device.available, has_own);
        let kernels = device.kernel_bytes(&chunk_plan(model, &device.profile, chunk)?)?;
        let memory = Memory { available: device.available, reserve, kernels };
        let budget = Budget::divide(model, &device.profile, chunk, asked_context, asked_cache, memory);
        budget.map_err(|refused| match least(model, &device.profile, chunk, asked_context, memory) {
            Ok(need) if need > memory.available => match device.advice(need) {
                Some(advice) => anyhow!("{refused:#} ({advice})"),
                None => refused,
            },
            _ => refused,
        })
    }

    fn divide(
        model: &Model,
        profile: &Profile,
        chunk: usize,
        asked_context: Option<u32>,
        asked_cache: Option<usize>,
        memory: Memory,
    ) -> Result<Budget> {
        let Memory { available, reserve, kernels } = memory;
        let g = &model.geometry;
        let weights = weight_bytes(model);
        let scratch = working_bytes(model, &chunk_plan(model, profile, chunk)?, kernels);
        let fixed = weights.saturating_add(scratch).saturating_add(reserve);
        let left = available.saturating_sub(fixed);
        let fits = tokens_in(g, profile, left);
        let context = match asked_context.map(|c| c as usize) {
            Some(asked) if asked > g.max_context => {
                bail!("--context is {asked}, and this model was made for at most {} tokens", g.max_context)
            }
            Some(asked) => asked,
            None => fits.min(g.max_context),
        };
        let need = sequence_bytes(g, profile, context.max(2));
        if context < 2 || need > left {
            bail!(
                "not enough memory: the weights take {}, working space {}, and {} tokens of context {}, of {} available \
                 ({} are kept free); {}",
                readable(weights),
                readable(scratch),
                context.max(2),
                readable(need),
                readable(available),
                readable(reserve),
                if fits >= 2 {
                    format!("--context {fits} would fit")
                } else {
                    "free some memory, or use a smaller model or one with fewer bits".to_owned()
                }
            );
        }
        let cache = match asked_cache {
            Some(bytes) if bytes > left - need => bail!(
                "--cache-memory is {}, and {} are left beside the weights and {context} tokens of context",
                readable(bytes),
                readable(left - need)
            ),
            Some(bytes) => bytes,
            None => ((left - need) / 4).min(DEFAULT_CACHE),
        };
        let shortened = asked_context.is_none() && context < g.max_context;
        Ok(Budget { context, shortened, state: left, cache })
    }
}

/// What a context takes on a device that need not be there, beside what `lily serve` keeps free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Footprint {
    #[serde(rename = "weights_bytes")]
    pub(crate) weights: usize,
    /// Keys, values and recurrent states of one sequence.
    #[serde(rename = "state_bytes")]
    pub(crate) state: usize,
    /// Activations of a chunk of prefill, logits, what kernels leave each other.
    #[serde(rename = "working_bytes")]
    pub(crate) working: usize,
    /// What the driver takes for itself.
    #[serde(rename = "driver_bytes")]
    pub(crate) driver: usize,
}

impl Footprint {
    /// Of so many tokens, on a device of a profile.
    pub(crate) fn of(model: &Model, profile: &Profile, context: usize) -> Result<Footprint> {
        let plan = chunk_plan(model, profile, profile.prefill_chunk)?;
        let (kernels, driver) = match profile.matrix_unit {
            MatrixUnit::TensorCore => {
                (lily_cuda::scratch_bytes(&plan, KernelSet::Native, profile.cores)?, CUDA_DRIVER)
            }
            _ => (0, 0),
        };
        Ok(Footprint {
            weights: weight_bytes(model),
            state: sequence_bytes(&model.geometry, profile, context),
            working: working_bytes(model, &plan, kernels),
            driver,
        })
    }

    /// All of it.
    pub(crate) fn total(&self) -> usize {
        self.weights.saturating_add(self.state).saturating_add(self.working).saturating_add(self.driver)
    }

    /// The longest context that is served where a device's whole memory, or what is free of a machine's, is this; `None` where not even a
    /// short one is. The context that this is of plays no part.
    pub(crate) fn longest(&self, g: &Geometry, profile: &Profile, memory: usize) -> Option<usize> {
        let available = memory.saturating_sub(self.driver);
        let fixed = [self.weights, self.working, reserve(available, profile.is_gpu())];
        let left = fixed.into_iter().fold(available, usize::saturating_sub);
        let tokens = tokens_in(g, profile, left).min(g.max_context);
        (tokens >= 2).then_some(tokens)
    }
}

/// What is kept free of so much memory, of a device of its own or of the machine's.
fn reserve(available: usize, has_own: bool) -> usize {
    (available / if has_own { GPU_RESERVE_SHARE } else { RESERVE_SHARE }).max(LEAST_RESERVE)
}

fn weight_bytes(model: &Model) -> usize {
    usize::try_from(model.checkpoint.total_bytes()).unwrap_or(usize::MAX)
}

/// Activations of a chunk, logits, and what kernels take for themselves.
fn working_bytes(model: &Model, chunk: &plan::Plan, kernels: usize) -> usize {
    chunk.arena_bytes + 4 * model.geometry.vocab + kernels
}

/// Bytes that would do: for the context that was asked for, or for one that is of use.
fn least(
    model: &Model,
    profile: &Profile,
    chunk: usize,
    asked_context: Option<u32>,
    memory: Memory,
) -> Result<usize> {
    let g = &model.geometry;
    let context = asked_context.map_or(USEFUL_CONTEXT, |c| c as usize).min(g.max_context);
    let scratch = working_bytes(model, &chunk_plan(model, profile, chunk)?, memory.kernels);
    let used =
        weight_bytes(model).saturating_add(scratch).saturating_add(sequence_bytes(g, profile, context));
    // What is kept free grows with the memory.
    Ok(used.saturating_add((used / (GPU_RESERVE_SHARE - 1)).max(memory.reserve)))
}

/// The plan of a prefill chunk, whose activations are those of any context.
fn chunk_plan(model: &Model, profile: &Profile, chunk: usize) -> Result<plan::Plan> {
    let packed = profile.is_gpu().then(|| model.weights.packed().0);
    let weights = packed.as_ref().unwrap_or(&model.weights);
    let target = Target { geometry: &model.geometry, weights, profile };
    Ok(plan::prefill(target, chunk, chunk, LogitRows::Last)?)
}

/// Bytes of a sequence of this many tokens: pages are whole, and one more may be shared with a snapshot.
pub(crate) fn sequence_bytes(g: &Geometry, profile: &Profile, tokens: usize) -> usize {
    recurrent_bytes(g, profile) + (tokens + 128) * g.kv_bytes_per_token(profile.activation.bytes())
}

/// On GPUs, a step writes a second state beside the one it reads.
fn recurrent_bytes(g: &Geometry, profile: &Profile) -> usize {
    g.recurrent_state_bytes() * if profile.is_gpu() { 2 } else { 1 }
}

fn tokens_in(g: &Geometry, profile: &Profile, bytes: usize) -> usize {
    let left = bytes.saturating_sub(recurrent_bytes(g, profile));
    (left / g.kv_bytes_per_token(profile.activation.bytes()).max(1)).saturating_sub(128)
}

/// A size as people write it.
pub(crate) fn readable(bytes: usize) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use lily_model::testing::{Spec, model_in_memory};

    use super::*;

    #[test]
    fn the_longest_context_of_a_memory_fits_into_it() {
        let model = model_in_memory(&Spec::tiny());
        for profile in
            [Profile::cpu(), Profile::named("cuda:h200").unwrap(), Profile::named("metal:m5-max").unwrap()]
        {
            let takes = |context| Footprint::of(&model, &profile, context).unwrap();
            let longest = |memory| takes(10).longest(&model.geometry, &profile, memory);
            let [short, long] = [10, 100].map(|context| takes(context).total());
            assert_eq!(long - short, 90 * model.geometry.kv_bytes_per_token(profile.activation.bytes()));
            assert_eq!(takes(10).driver > 0, profile.name == "cuda:h200");
            // With what is kept free at the least, which is more than its share of so little memory.
            let memory = long + LEAST_RESERVE;
            assert_eq!(longest(memory), Some(100));
            assert_eq!(longest(memory - 1), Some(99));
            assert_eq!(longest(1000), None);
            let most = model.geometry.max_context;
            assert_eq!(longest(64 << 30), Some(most));
        }
    }

    #[test]
    fn the_context_is_what_fits_and_a_refusal_says_what_would() {
        let model = model_in_memory(&Spec::tiny());
        let (g, cpu) = (&model.geometry, Profile::cpu());
        let memory = |available: usize| Memory {
            available,
            reserve: (available / RESERVE_SHARE).max(LEAST_RESERVE),
            kernels: 0,
        };
        let all = Budget::divide(&model, &cpu, 512, None, None, memory(8 << 30)).unwrap();
        assert_eq!((all.context, all.shortened), (g.max_context, false));
        assert!(all.cache > 0 && all.cache <= all.state);

        let fixed =
            LEAST_RESERVE + chunk_plan(&model, &cpu, 512).unwrap().arena_bytes + 4 * model.geometry.vocab;
        let tight = fixed + model.checkpoint.total_bytes() as usize + sequence_bytes(g, &cpu, 100);
        let some = Budget::divide(&model, &cpu, 512, None, None, memory(tight)).unwrap();
        assert_eq!((some.context, some.shortened), (100.min(g.max_context), g.max_context > 100));
        let refused =
            Budget::divide(&model, &cpu, 512, Some(101), None, memory(tight)).unwrap_err().to_string();
        assert!(refused.contains("--context 100 would fit"), "{refused}");
        let refused = Budget::divide(&model, &cpu, 512, None, None, memory(1000)).unwrap_err().to_string();
        assert!(refused.contains("smaller model"), "{refused}");
        let refused = Budget::divide(&model, &cpu, 512, Some(50), Some(1 << 40), memory(tight))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("--cache-memory"), "{refused}");
        let too_long = u32::try_from(g.max_context + 1).unwrap();
        assert!(Budget::divide(&model, &cpu, 512, Some(too_long), None, memory(8 << 30)).is_err());
    }

    /// What is said to do, does.
    #[test]
    fn memory_of_the_least_that_is_named_is_enough() {
        let model = model_in_memory(&Spec::tiny());
        let gpu = Profile::named("metal:m2").unwrap();
        for asked in [None, Some(300)] {
            let memory = |available: usize| Memory {
                available,
                reserve: (available / GPU_RESERVE_SHARE).max(LEAST_RESERVE),
                kernels: 0,
            };
            let budget = |memory| Budget::divide(&model, &gpu, 256, asked, None, memory);
            let short = memory(1 << 20);
            assert!(budget(short).is_err());
            let need = least(&model, &gpu, 256, asked, short).unwrap();
            let wanted = asked.map_or(model.geometry.max_context.min(USEFUL_CONTEXT), |c| c as usize);
            assert!(budget(memory(need)).unwrap().context >= wanted, "{asked:?}");
            assert!(need < 2 * LEAST_RESERVE, "no more than it takes: {need}");
        }
    }

    #[test]
    fn files_that_a_container_keeps_in_memory_are_available() {
        assert_eq!(within(None, 20, 24), (20, 24));
        // no limit of its own: 1 of 24 held, and 19 of files, which the machine counts as available
        assert_eq!(within(Some((24, 1)), 22, 24), (22, 24));
        assert_eq!(within(Some((8, 3)), 22, 24), (5, 8));
        assert_eq!(within(Some((8, 9)), 22, 24), (1, 8));
        assert_eq!(within(Some((usize::MAX, 3)), 22, 24), (21, 24));
    }

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (19 << 30, "19.0 GiB")]
        {
            assert_eq!(readable(bytes), text);
        }
    }
}
