//! A plan made ready for the device: of each launch its pipeline, its bindings, and whether it waits for those before it. It holds
//! wherever buffers are: bindings name them.

use lily_kernels::moe::GroupTiles;
use lily_kernels::{Dispatch, Kernel};
use lily_model::DeviceError;
use lily_model::device::{self, Place};
use lily_model::plan::{Launch, Phase, Plan, Switches, Tail};

use crate::buffers::{At, Bound};
use crate::estimate::Rates;
use crate::gpu::Gpu;
use crate::pipelines::{Pipelines, Variant};

/// What a plan is kept under; the rest of it follows from the model and the profile.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PlanKey {
    phase: Phase,
    switches: Switches,
    slots: usize,
    rows: usize,
    context: usize,
    logit_rows: usize,
    tail: Tail,
}

impl PlanKey {
    pub(crate) fn new(plan: &Plan) -> Self {
        let Plan { phase, switches, slots, rows, context, logit_rows, tail, .. } = *plan;
        PlanKey { phase, switches, slots, rows, context, logit_rows, tail }
    }
}

/// One launch.
pub(crate) struct Step<G: Gpu> {
    /// `in_proj of layer 3 (norm_matmul)`.
    pub(crate) name: String,
    /// What it takes at most.
    pub(crate) seconds: f64,
    /// It begins a stage: it sees what all launches before it wrote.
    pub(crate) begins_stage: bool,
    pub(crate) work: Work<G>,
}

pub(crate) enum Work<G: Gpu> {
    Kernel(Box<Bindings<G>>),
    /// The host groups rows by expert.
    Group {
        kernel: GroupTiles,
        ids: Place<At>,
        order: Place<At>,
        tiles: Place<At>,
    },
}

/// A dispatch.
pub(crate) struct Bindings<G: Gpu> {
    pub(crate) pipeline: G::Pipeline,
    /// By number.
    pub(crate) buffers: Vec<(usize, At)>,
    /// What is passed by value, by number.
    pub(crate) words: Option<(usize, Vec<u32>)>,
    /// Bytes of threadgroup memory, by number.
    pub(crate) memory: Vec<(usize, usize)>,
    pub(crate) groups: [usize; 3],
    pub(crate) threads: [usize; 3],
}

/// A plan with everything that it binds.
pub(crate) struct Prepared<G: Gpu> {
    plan: Plan,
    /// Where that stood: a plan at the same place of as many launches is the same.
    at: usize,
    pub(crate) steps: Vec<Step<G>>,
    pub(crate) moves_states: bool,
}

/// What the GPU runs of a plan.
pub(crate) fn dispatches(plan: &Plan) -> Result<Vec<Dispatch>, DeviceError> {
    plan.launches.iter().filter(|launch| !launch.on_host).map(dispatch).collect()
}

fn dispatch(launch: &Launch) -> Result<Dispatch, DeviceError> {
    launch.kernel.dispatch().ok_or_else(|| {
        let name = launch.kernel.name();
        DeviceError::Failed(format!("GPUs have no text of kernel {name} ({})", launch.label))
    })
}

impl<G: Gpu> Prepared<G> {
    /// Makes a plan ready whose pipelines are there.
    pub(crate) fn new(
        plan: &Plan,
        bound: &Bound<'_, G>,
        pipelines: &Pipelines<G>,
        rates: Rates,
        threadgroup_memory: usize,
        delta_layers: usize,
    ) -> Result<Self, DeviceError> {
        let mut steps = Vec::with_capacity(plan.launches.len());
        for stage in &plan.stages {
            for launch in &plan.launches[stage.clone()] {
                let name = device::launch_label(launch);
                let work = if launch.on_host {
                    on_host(launch, bound)?
                } else {
                    kernel(&name, launch, bound, pipelines, threadgroup_memory)?
                };
                let begins_stage = steps.len() == stage.start;
                steps.push(Step { name, seconds: rates.seconds(launch, plan), begins_stage, work });
            }
        }
        let moves_states = device::moves_states(plan, delta_layers)?;
        Ok(Prepared { plan: plan.clone(), at: place_of(plan), steps, moves_states })
    }

    /// Whether it is this plan. Comparing plans takes as long as some launches, so one at the same place is taken for the same: its
    /// shape is what it is kept under.
    pub(crate) fn holds(&mut self, plan: &Plan) -> bool {
        let at = place_of(plan);
        if self.at != at && self.plan == *plan {
            self.at = at;
        }
        self.at == at && self.plan.launches.len() == plan.launches.len()
    }
}

fn place_of(plan: &Plan) -> usize {
    plan.launches.as_ptr().addr()
}

fn on_host<G: Gpu>(launch: &Launch, bound: &Bound<'_, G>) -> Result<Work<G>, DeviceError> {
    let places = device::operands(bound, launch)?;
    match (&launch.kernel, &places[..]) {
        (Kernel::GroupTiles(kernel), [ids, order, tiles]) => {
            Ok(Work::Group { kernel: *kernel, ids: *ids, order: *order, tiles: *tiles })
        }
        _ => Err(DeviceError::Failed(format!("the host has no way to run {}", device::launch_label(launch)))),
    }
}

fn kernel<G: Gpu>(
    name: &str,
    launch: &Launch,
    bound: &Bound<'_, G>,
    pipelines: &Pipelines<G>,
    threadgroup_memory: usize,
) -> Result<Work<G>, DeviceError> {
    let failed = |text: String| DeviceError::Failed(format!("{name}: {text}"));
    let dispatch = dispatch(launch)?;
    let pipeline = pipelines.get(&Variant::of(&dispatch));
    let pipeline = pipeline.ok_or_else(|| failed("its pipeline was not made".into()))?;
    let places = device::operands(bound, launch)?;
    let buffers = device::buffers(bound, dispatch.text, launch.kernel.operands(), &places)?;
    let value = dispatch.text.value_buffer();
    let bound: Vec<(usize, At)> =
        buffers.iter().enumerate().filter_map(|(n, at)| Some((n, (*at)?))).collect();
    let bytes = pipeline.limits.fixed_memory + dispatch.threadgroup_bytes.iter().sum::<usize>();
    if bytes > threadgroup_memory {
        return Err(failed(format!(
            "it takes {bytes} bytes of threadgroup memory; wanted at most {threadgroup_memory}"
        )));
    }
    if dispatch.grid.contains(&0) || dispatch.grid.iter().any(|n| u32::try_from(*n).is_err()) {
        return Err(failed(format!("it has {:?} threadgroups; lower the prefill chunk", dispatch.grid)));
    }
    Ok(Work::Kernel(Box::new(Bindings {
        pipeline: pipeline.pipeline.clone(),
        buffers: bound,
        words: value.map(|n| (n, dispatch.params)),
        memory: dispatch.threadgroup_bytes.into_iter().enumerate().collect(),
        groups: dispatch.grid,
        threads: dispatch.threads,
    })))
}
