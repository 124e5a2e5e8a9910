//! A plan made ready for the device: of each launch its kernel and its arguments. It holds as long as no buffer moves.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_kernels::moe::GroupTiles;
use lily_kernels::{Access, Activation, Dispatch, Kernel, Operand};
use lily_model::device::{self, Place};
use lily_model::plan::{Launch, Plan, View};
use lily_model::{DeviceError, device::Memory};

use crate::buffers::Bound;
use crate::codes::Variant;
use crate::driver::{Context, CudaError, Event, cuda};
use crate::graph::Graph;
use crate::host;
use crate::memory::bytes_of;
use crate::modules::{Function, Modules};
use crate::native::{self, Joined, KernelSet, Native};

/// The most threadgroups along y and z.
const MOST_GROUPS: usize = 65_535;

/// One launch.
struct Step {
    /// `in_proj of layer 3 (norm_matmul)`.
    name: String,
    /// What runs one after the other.
    works: Vec<Work>,
}

pub(crate) enum Work {
    Kernel {
        function: Function,
        grid: [u32; 3],
        threads: [u32; 3],
        shared: u32,
        /// Arguments one after the other, each at a multiple of eight bytes.
        data: Vec<u64>,
        /// Where each begins, in eights of bytes.
        starts: Vec<usize>,
        /// It waits itself for what ran before, and may start early.
        waits: bool,
    },
    /// The host groups rows by expert.
    Group { kernel: GroupTiles, ids: Place<u64>, order: Place<u64>, tiles: Place<u64> },
}

/// A plan with the addresses of everything that it touches.
pub(crate) struct Prepared {
    /// What it was made of.
    plan: Plan,
    /// Where that stood: a plan at the same place of the same shape is the same.
    at: *const Launch,
    steps: Vec<Step>,
    /// Where all buffers were.
    addresses: Vec<u64>,
    pub(crate) moves_states: bool,
    on_host: bool,
    graph: Option<Graph>,
    /// It has run: its kernels are on the device, which loads some of them at their first launch.
    has_run: bool,
}

// SAFETY: the pointer is compared and never followed; handles of the driver may be used on any thread.
unsafe impl Send for Prepared {}

/// How a launch of a plan runs.
enum Run {
    Alone(Native),
    /// Together with the next one.
    Joined(Box<Joined>),
    WithTheOneBefore,
    OnHost,
    /// No GPU has a text for it.
    Missing,
}

/// How each launch of a plan runs on a GPU of so many multiprocessors.
fn runs(plan: &Plan, set: KernelSet, cores: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::with_capacity(plan.launches.len());
    for stage in &plan.stages {
        for (i, launch) in plan.launches.iter().enumerate().take(stage.end).skip(stage.start) {
            if let Some(Run::Joined(_)) = runs.last() {
                runs.push(Run::WithTheOneBefore);
                continue;
            }
            // What the parts of a long context mean is between the two texts (`native::attention`).
            let before = i.checked_sub(1).map(|before| &plan.launches[before].kernel);
            let is_shared = |kernel| native::of(kernel, plan.activation, set, cores).is_none();
            let set = match (&launch.kernel, before) {
                (Kernel::AttendCombine(_), Some(parts)) if is_shared(parts) => KernelSet::Shared,
                _ => set,
            };
            let next = plan.launches[i..stage.end].get(1).map(|next| [&launch.kernel, &next.kernel]);
            let joined = next.and_then(|pair| native::joined(pair, plan.activation, set, cores));
            runs.push(match joined {
                Some(joined) => Run::Joined(Box::new(joined)),
                None if launch.on_host => Run::OnHost,
                None => {
                    dispatches(&launch.kernel, plan.activation, set, cores).map_or(Run::Missing, Run::Alone)
                }
            });
        }
    }
    runs
}

/// The kernels of a plan that a set of texts launches on a GPU of so many multiprocessors.
pub fn variants(plan: &Plan, set: KernelSet, cores: usize) -> Vec<Variant> {
    let dispatches = runs(plan, set, cores).into_iter().flat_map(|run| match run {
        Run::Alone(native) => native.launches,
        Run::Joined(joined) => vec![joined.launch],
        Run::WithTheOneBefore | Run::OnHost | Run::Missing => Vec::new(),
    });
    dispatches.map(|dispatch| Variant::of(&dispatch, plan.activation)).collect()
}

/// The most bytes that launches of one kernel of a plan leave each other, on a GPU of so many multiprocessors.
///
/// # Errors
/// Where no GPU runs one of its kernels.
pub fn scratch_bytes(plan: &Plan, set: KernelSet, cores: usize) -> Result<usize, DeviceError> {
    let launches = plan.launches.iter().filter(|launch| !launch.on_host);
    let mut bytes =
        launches.map(|launch| Ok(dispatches(&launch.kernel, plan.activation, set, cores)?.scratch_bytes));
    bytes.try_fold(0, |most, bytes: Result<usize, DeviceError>| Ok(most.max(bytes?)))
}

/// How a launch runs: by native texts where there are some for it, or by the shared one.
pub(crate) fn dispatches(
    kernel: &Kernel,
    activation: Activation,
    set: KernelSet,
    cores: usize,
) -> Result<Native, DeviceError> {
    let native = native::of(kernel, activation, set, cores);
    let shared = || kernel.dispatch().map(|d| Native { launches: vec![d], scratch_bytes: 0 });
    native.or_else(shared).ok_or_else(|| missing(kernel))
}

/// Whether a launch writes what the native text of one behind it reads before it waits ([`native::early`]).
fn writes_what_is_early(first: &Launch, second: &Launch) -> bool {
    let early = native::early(&second.kernel);
    let written: Vec<&View> =
        views(first).filter(|(o, _)| o.access != Access::Read).map(|(_, v)| v).collect();
    let overlap = |a: &View, b: &View| {
        a.buffer == b.buffer && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end
    };
    let mut read = views(second).filter(|(operand, _)| early.contains(&operand.name));
    read.any(|(_, read)| written.iter().any(|written| overlap(read, written)))
}

/// The operands of a launch, those of a sequence once for each.
fn views(launch: &Launch) -> impl Iterator<Item = (&Operand, &View)> {
    let slots = launch.kernel.slots();
    let times = move |operand: &Operand| if operand.per_slot { slots } else { 1 };
    let operands = launch.kernel.operands().iter();
    operands.flat_map(move |operand| std::iter::repeat_n(operand, times(operand))).zip(&launch.bindings)
}

/// A step starts when the launch before it has ended.
fn waits_for_the_end(step: &mut Step) {
    if let Some(Work::Kernel { waits, .. }) = step.works.first_mut() {
        *waits = false;
    }
}

fn missing(kernel: &Kernel) -> DeviceError {
    DeviceError::Failed(format!("GPUs have no text of kernel {}", kernel.name()))
}

fn name_of(launch: &Launch) -> String {
    let layer = launch.layer.map_or(String::new(), |layer| format!(" of layer {layer}"));
    format!("{}{layer} ({})", launch.label, launch.kernel.name())
}

impl Prepared {
    /// Makes a plan ready whose kernels are loaded.
    pub(crate) fn new(
        plan: &Plan,
        (set, cores): (KernelSet, usize),
        memory: &Bound<'_>,
        modules: &Modules,
        addresses: Vec<u64>,
        delta_layers: usize,
    ) -> Result<Self, DeviceError> {
        let scratch = memory.buffers.scratch.start();
        let one = |launch: &Launch, dispatch: &Dispatch| {
            let places = device::operands(memory, launch)?;
            One::new(&launch.kernel, dispatch, memory, &places, scratch)
        };
        let step = |(i, run): (usize, Run)| {
            let launch = &plan.launches[i];
            let mut name = name_of(launch);
            let works = match run {
                Run::OnHost => vec![on_host(launch, memory)?],
                Run::Missing => return Err(missing(&launch.kernel)),
                Run::WithTheOneBefore => Vec::new(),
                Run::Alone(native) => native
                    .launches
                    .iter()
                    .map(|d| Work::kernel(&name, d, plan.activation, &[one(launch, d)?], modules))
                    .collect::<Result<_, _>>()?,
                Run::Joined(joined) => {
                    let Joined { launch: both, alone: [first, second] } = *joined;
                    let next = &plan.launches[i + 1];
                    name = format!("{name} with {}", name_of(next));
                    let ones = [one(launch, &first)?, one(next, &second)?];
                    vec![Work::kernel(&name, &both, plan.activation, &ones, modules)?]
                }
            };
            Ok::<_, DeviceError>(Step { name, works })
        };
        let runs = runs(plan, set, cores);
        let is_joined: Vec<bool> = runs.iter().map(|run| matches!(run, Run::Joined(_))).collect();
        let mut steps: Vec<Step> = runs.into_iter().enumerate().map(step).collect::<Result<_, _>>()?;
        let mut before: &[Launch] = &[];
        for (i, step) in steps.iter_mut().enumerate().filter(|(_, step)| !step.works.is_empty()) {
            if before.iter().any(|first| writes_what_is_early(first, &plan.launches[i])) {
                waits_for_the_end(step);
            }
            before = &plan.launches[i..=i + usize::from(is_joined[i])];
        }
        // Behind it everything older than the plan is done, which native texts rely on.
        steps.first_mut().into_iter().for_each(waits_for_the_end);
        let moves_states = device::moves_states(plan, delta_layers)?;
        let on_host = plan.launches.iter().any(|launch| launch.on_host);
        let at = plan.launches.as_ptr();
        Ok(Prepared {
            plan: plan.clone(),
            at,
            steps,
            addresses,
            moves_states,
            on_host,
            graph: None,
            has_run: false,
        })
    }

    /// Whether it is this plan, and every buffer is where it was. Comparing plans takes as long as some launches, so a plan at
    /// the same place, of as many launches, is taken for the same: its shape is what it is kept under.
    pub(crate) fn holds(&mut self, plan: &Plan, addresses: &[u64]) -> bool {
        if self.addresses != addresses {
            return false;
        }
        let at = plan.launches.as_ptr();
        if self.at != at && self.plan == *plan {
            self.at = at;
        }
        self.at == at && self.plan.launches.len() == plan.launches.len()
    }

    /// Enqueues all launches, from the second time on as a graph where that is asked for and possible. With `one_by_one` each is waited for, so that an
    /// error has a name.
    pub(crate) fn run(
        &mut self,
        context: &Arc<Context>,
        graphs: bool,
        one_by_one: bool,
    ) -> Result<(), DeviceError> {
        if !graphs || one_by_one || self.on_host || !self.has_run {
            self.has_run = true;
            return self.enqueue(context, one_by_one);
        }
        if self.graph.is_none() {
            self.graph = Some(Graph::capture(context, || self.enqueue(context, false))?);
        }
        match &self.graph {
            Some(graph) => Ok(graph.launch()?),
            None => self.enqueue(context, false),
        }
    }

    /// Runs all launches one after the other and returns the seconds from the end of the one before to the end of each: its own
    /// time and what launching costs; 0 for one that runs with the one before. Waits for them.
    pub(crate) fn run_timed(&mut self, context: &Context) -> Result<Vec<f64>, DeviceError> {
        self.has_run = true;
        let events: Vec<Event> = (0..=self.steps.len()).map(|_| Event::timed()).collect::<Result<_, _>>()?;
        events[0].record(context.stream())?;
        for (step, event) in self.steps.iter().zip(&events[1..]) {
            step.enqueue(context)?;
            if !step.works.is_empty() {
                event.record(context.stream())?;
            }
        }
        context.wait()?;
        let mut before = &events[0];
        let mut seconds = |(step, event): (&Step, _)| {
            if step.works.is_empty() {
                return Ok(0.0);
            }
            std::mem::replace(&mut before, event).seconds_to(event)
        };
        Ok(self.steps.iter().zip(&events[1..]).map(&mut seconds).collect::<Result<_, CudaError>>()?)
    }

    fn enqueue(&self, context: &Context, one_by_one: bool) -> Result<(), DeviceError> {
        self.steps.iter().try_for_each(|step| {
            step.enqueue(context)?;
            if one_by_one {
                context.wait().map_err(|e| step.failed(&e))?;
            }
            Ok(())
        })
    }
}

impl Step {
    fn failed(&self, error: &CudaError) -> DeviceError {
        DeviceError::Failed(format!("{}: {error}", self.name))
    }

    fn enqueue(&self, context: &Context) -> Result<(), DeviceError> {
        self.works.iter().try_for_each(|work| work.enqueue(context)).map_err(|e| self.failed(&e))
    }
}

/// The arguments of a kernel of a launch, each at a multiple of eight bytes, and where each begins.
pub(crate) struct One {
    data: Vec<u64>,
    starts: Vec<usize>,
}

impl One {
    /// Of a kernel whose operands are at these places.
    pub(crate) fn new<M: Memory<Address = u64>>(
        kernel: &Kernel,
        dispatch: &Dispatch,
        memory: &M,
        places: &[Place<u64>],
        scratch: u64,
    ) -> Result<Self, DeviceError> {
        let buffers = device::buffers(memory, dispatch.text, kernel.operands(), places)?;
        let (data, starts) = arguments(dispatch, &buffers, scratch);
        Ok(One { data, starts })
    }
}

impl Work {
    /// A launch of a kernel that is loaded, or of several that are one launch.
    pub(crate) fn kernel(
        name: &str,
        dispatch: &Dispatch,
        activation: Activation,
        ones: &[One],
        modules: &Modules,
    ) -> Result<Work, DeviceError> {
        let function = modules
            .get(&Variant::of(dispatch, activation))
            .ok_or_else(|| DeviceError::Failed(format!("the kernel of {name} is not loaded")))?;
        let shared: usize = dispatch.threadgroup_bytes.iter().sum();
        function.allow_shared(name, shared)?;
        let (grid, threads) = (dispatch.grid, dispatch.threads);
        if !can_launch(grid) {
            return Err(DeviceError::Failed(format!(
                "{name} has {grid:?} threadgroups; wanted 1 to {MOST_GROUPS} along y and z: lower the prefill chunk"
            )));
        }
        let (mut data, mut starts) = (Vec::new(), Vec::new());
        for one in ones {
            starts.extend(one.starts.iter().map(|start| data.len() + start));
            data.extend_from_slice(&one.data);
        }
        let words = |sizes: [usize; 3]| sizes.map(|n| n as u32);
        Ok(Work::Kernel {
            function,
            grid: words(grid),
            threads: words(threads),
            shared: shared as u32,
            data,
            starts,
            waits: native::is_native(dispatch.text) && modules.may_start_early(),
        })
    }

    pub(crate) fn enqueue(&self, context: &Context) -> Result<(), CudaError> {
        match self {
            Work::Kernel { function, grid, threads, shared, data, starts, waits } => {
                let start = |at: &usize| data[*at..].as_ptr().cast_mut().cast::<c_void>();
                let mut arguments: Vec<*mut c_void> = starts.iter().map(start).collect();
                let ([x, y, z], [tx, ty, tz]) = (*grid, *threads);
                let mut early = sys::CUlaunchAttribute {
                    id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                    pad: [0; 4],
                    value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                };
                let config = sys::CUlaunchConfig {
                    gridDimX: x,
                    gridDimY: y,
                    gridDimZ: z,
                    blockDimX: tx,
                    blockDimY: ty,
                    blockDimZ: tz,
                    sharedMemBytes: *shared,
                    hStream: context.stream(),
                    attrs: &raw mut early,
                    numAttrs: u32::from(*waits),
                };
                // SAFETY: the arguments are those of the kernel, in their order and of their sizes (`kernel`); the driver copies
                // them before it returns. Operands are bound to bytes that the plan gives them, inside of their buffers; that
                // those are as many as the kernel touches is the plan's promise, held by its tests.
                unsafe {
                    cuda!(cuLaunchKernelEx(
                        &raw const config,
                        function.function,
                        arguments.as_mut_ptr(),
                        std::ptr::null_mut(),
                    ))
                }
            }
            Work::Group { kernel, ids, order, tiles } => {
                let mut bytes = vec![0u8; ids.bytes];
                read(context, *ids, &mut bytes)?;
                let ids: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
                let (order_words, tile_words) = host::group(kernel, &ids);
                write(context, *order, bytes_of(&order_words))?;
                write(context, *tiles, bytes_of(&tile_words))
            }
        }
    }
}

fn read(context: &Context, from: Place<u64>, into: &mut [u8]) -> Result<(), CudaError> {
    assert!(into.len() <= from.bytes);
    // SAFETY: inside of the operand (asserted); waited for before the target goes.
    unsafe {
        cuda!(cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), from.start, into.len(), context.stream()))
    }?;
    context.wait()
}

fn write(context: &Context, to: Place<u64>, bytes: &[u8]) -> Result<(), CudaError> {
    assert!(bytes.len() <= to.bytes);
    // SAFETY: inside of the operand (asserted); waited for before the source goes.
    unsafe { cuda!(cuMemcpyHtoDAsync_v2(to.start, bytes.as_ptr().cast(), bytes.len(), context.stream())) }?;
    context.wait()
}

fn on_host<M: Memory<Address = u64>>(launch: &Launch, memory: &M) -> Result<Work, DeviceError> {
    let places = device::operands(memory, launch)?;
    match (&launch.kernel, &places[..]) {
        (Kernel::GroupTiles(kernel), [ids, order, tiles]) => {
            Ok(Work::Group { kernel: *kernel, ids: *ids, order: *order, tiles: *tiles })
        }
        _ => Err(DeviceError::Failed(format!("the host has no way to run {}", name_of(launch)))),
    }
}

/// Whether there are threadgroups, and no more than the hardware counts.
fn can_launch(grid: [usize; 3]) -> bool {
    !grid.contains(&0) && grid[0] <= i32::MAX as usize && grid[1].max(grid[2]) <= MOST_GROUPS
}

/// The arguments of a unit's kernel ([`lily_kernels::cuda_unit`]), each at a multiple of eight bytes, and where each begins.
fn arguments(dispatch: &Dispatch, buffers: &[Option<u64>], scratch: u64) -> (Vec<u64>, Vec<usize>) {
    let (mut data, mut starts) = (Vec::new(), Vec::new());
    let parameters = dispatch.text.parameters.iter();
    for p in parameters.clone().filter(|p| p.attribute == "buffer") {
        starts.push(data.len());
        match buffers.get(p.index).copied().flatten() {
            Some(address) => data.push(address),
            None => data.extend(dispatch.params.chunks(2).map(|pair| {
                let high = pair.get(1).copied().unwrap_or(0);
                u64::from(pair[0]) | u64::from(high) << 32
            })),
        }
    }
    if parameters.clone().any(|p| p.attribute == native::SCRATCH) {
        starts.push(data.len());
        data.push(scratch);
    }
    for p in parameters.filter(|p| p.attribute == "TG_PARAM" && !native::is_native(dispatch.text)) {
        starts.push(data.len());
        let offset: usize = dispatch.threadgroup_bytes[..p.index].iter().sum();
        data.push(offset as u64);
    }
    (data, starts)
}

#[cfg(test)]
mod tests {
    use lily_kernels::{Text, TextParameter};
    use lily_model::plan::{self, DecodeShape, Profile, Switch, Switches, Tail, Target};
    use lily_model::{LogitRows, Preset};

    use super::*;

    /// Every launch of the true size's plans: threadgroups that the hardware counts, threads and memory that every GPU since Ampere
    /// gives.
    #[test]
    fn plans_of_true_size_can_be_launched() {
        let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
        let weights = preset.weights().packed().0;
        let every = Profile::named("cuda:h200").unwrap();
        let off = Switch::ALL.map(|s| every.clone().without(s));
        for profile in [every.clone(), every.with_switches(Switches::NONE)].into_iter().chain(off) {
            let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
            let mut plans: Vec<Plan> = [1, 2, 33, 4096]
                .map(|rows| plan::prefill(target, rows, 131_072, LogitRows::Last).unwrap())
                .into();
            plans.push(plan::decode(target, DecodeShape::logits(4, 262_144)).unwrap());
            let tail = Tail::Select { entries: 4 };
            plans.push(plan::decode(target, DecodeShape { tail, ..DecodeShape::logits(4, 256) }).unwrap());
            for launch in plans.iter().flat_map(|p| &p.launches) {
                let dispatch = launch.kernel.dispatch().unwrap();
                assert!(can_launch(dispatch.grid), "{}: {:?}", name_of(launch), dispatch.grid);
                assert!(dispatch.threads.iter().product::<usize>() <= 1024, "{}", name_of(launch));
                let shared: usize = dispatch.threadgroup_bytes.iter().sum();
                assert!(shared <= 48 << 10, "{}: {shared} bytes", name_of(launch));
            }
        }
    }

    /// In every layer of a step, unless one waits for the other (a barrier after each launch) or the shared texts run.
    #[test]
    fn router_and_shared_expert_are_one_launch() {
        let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
        let weights = preset.weights().packed().0;
        let profile = Profile::named("cuda:h200").unwrap();
        let joined = |profile: &Profile, set| {
            let target = Target { geometry: &preset.geometry, weights: &weights, profile };
            let plan = plan::decode(target, DecodeShape::logits(2, 256)).unwrap();
            let runs = runs(&plan, set, 132);
            assert_eq!(runs.len(), plan.launches.len());
            let second = |i: &usize| matches!(runs[*i], Run::WithTheOneBefore);
            for i in (0..runs.len()).filter(second) {
                assert_eq!(
                    (plan.launches[i - 1].label, plan.launches[i].label),
                    ("router", "shared_gate_up")
                );
            }
            (0..runs.len()).filter(second).count()
        };
        assert_eq!(joined(&profile, KernelSet::Native), preset.geometry.layers.len());
        assert_eq!(joined(&profile, KernelSet::Shared), 0);
        assert_eq!(joined(&profile.without(Switch::ConcurrentPass), KernelSet::Native), 0);
    }

    /// In a step of true size what is read early is older than the launch before; a launch that adds to what the one before has added to is not.
    #[test]
    fn early_operands_are_older_than_the_launch_before() {
        let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
        let weights = preset.weights().packed().0;
        let profile = Profile::named("cuda:h200").unwrap();
        let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
        let plan = plan::decode(target, DecodeShape::logits(2, 4096)).unwrap();
        let early = plan.launches.iter().filter(|launch| !native::early(&launch.kernel).is_empty()).count();
        let layers = &preset.geometry.layers;
        // Two that add to the residual stream in each layer, and what joins the blocks of attention.
        assert_eq!(early, 2 * layers.len() + layers.len() / 4);
        assert!(!plan.launches.windows(2).any(|pair| writes_what_is_early(&pair[0], &pair[1])));
        let adds = |launch: &&Launch| native::early(&launch.kernel).contains(&"out");
        let adding: Vec<&Launch> = plan.launches.iter().filter(adds).collect();
        assert!(adding.windows(2).all(|pair| writes_what_is_early(pair[0], pair[1])));
    }

    /// The parts of a step that has no native text are joined by the shared one.
    #[test]
    fn parts_of_attention_are_joined_by_the_text_that_made_them() {
        let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
        let weights = preset.weights().packed().0;
        for (without, is_native) in
            [(None, true), (Some(Switch::GqaPack), false), (Some(Switch::CoalescedKv), false)]
        {
            let profile = Profile::named("cuda:h200").unwrap();
            let profile = without.map_or(profile.clone(), |switch| profile.without(switch));
            let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
            let plan = plan::decode(target, DecodeShape::logits(1, 65_536)).unwrap();
            let runs = runs(&plan, KernelSet::Native, 132);
            let texts =
                plan.launches.iter().zip(&runs).filter_map(|(launch, run)| match (&launch.kernel, run) {
                    (Kernel::AttendStepBlocks(_) | Kernel::AttendCombine(_), Run::Alone(native)) => {
                        Some(native.launches[0].text)
                    }
                    _ => None,
                });
            let texts: Vec<&Text> = texts.collect();
            assert_eq!(texts.len(), preset.geometry.layers.len() / 2);
            assert!(texts.iter().all(|text| native::is_native(text) == is_native), "{without:?}");
        }
    }

    #[test]
    fn arguments_stand_in_the_order_of_the_unit() {
        const fn parameter(kind: &'static str, attribute: &'static str, index: usize) -> TextParameter {
            TextParameter { kind, name: "x", attribute, index }
        }
        static TEXT: Text = Text {
            name: "t",
            path: "t.metal",
            source: "",
            parameters: &[
                parameter("device float*", "buffer", 0),
                parameter("threadgroup float*", "TG_PARAM", 0),
                parameter("constant Params&", "buffer", 1),
                parameter("threadgroup float*", "TG_PARAM", 1),
                parameter("uint", "thread_index_in_simdgroup", 0),
                parameter("device uint*", "buffer", 2),
            ],
            constants: &[],
        };
        let mut dispatch = Dispatch::new(&TEXT, vec![], vec![1, 2, 3], [1; 3], [32, 1, 1]);
        dispatch.threadgroup_bytes = vec![48, 16];
        let (data, starts) = arguments(&dispatch, &[Some(77), None, Some(88)], 5);
        assert_eq!(data, [77, 1 | 2 << 32, 3, 88, 0, 48]);
        assert_eq!(starts, [0, 1, 3, 4, 5]);
    }
}
