//! The device: sequences, buffers and runs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lily_model::device::{Batch, Choices, Device, Room, STEPS_UNDER_WAY, Sequences, StatePart, TensorSource};
use lily_model::plan::{Phase, Plan, Profile, Switches, Tail, Target, check_limits};
use lily_model::{DeviceError, Geometry, LayerKind, Packing, SequenceId, SnapshotId, Weights};

use crate::buffers::{Bound, Buffers, StepLayout};
use crate::codes::Codes;
use crate::driver::Context;
use crate::gpu::Gpu;
use crate::hand_over::Inbox;
use crate::memory::Pinned;
use crate::modules::Modules;
use crate::native::KernelSet;
use crate::pool::Pool;
use crate::prepared::{Prepared, scratch_bytes, variants};

/// The most plans that are kept ready. Prefill plans depend on the number of rows, so a server sees many.
const PLANS_KEPT: usize = 64;

/// How far a device is with what takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Kernels are compiled, or read from disk.
    Compiling {
        /// Those that are ready.
        done: usize,
        /// All that are needed now.
        of: usize,
    },
    /// Weights are copied to the device.
    Uploading {
        /// Bytes that are on their way.
        bytes: usize,
        /// All.
        of: usize,
    },
}

/// Who is told of progress; on any thread.
pub type Watch = Arc<dyn Fn(Progress) + Send + Sync>;

/// How a [`CudaDevice`] works.
#[derive(Clone)]
pub struct CudaOptions {
    /// What plans are built by: the type of activations, mechanisms, thresholds.
    pub profile: Profile,
    /// The most bytes that keys, values and recurrent states may take together.
    pub state_bytes: usize,
    /// Which texts run a plan's kernels.
    pub kernels: KernelSet,
    /// Decode steps are captured into CUDA graphs and replayed.
    pub graphs: bool,
    /// Each launch is waited for, so that an error names the launch that made it; slow.
    pub one_by_one: bool,
    /// The folder that keeps machine code; `None` compiles every time.
    pub cubins: Option<PathBuf>,
    /// Who is told of progress.
    pub watch: Option<Watch>,
}

impl CudaOptions {
    /// Native kernels, graphs, and nothing on disk.
    pub fn new(profile: Profile, state_bytes: usize) -> Self {
        CudaOptions {
            profile,
            state_bytes,
            kernels: KernelSet::Native,
            graphs: true,
            one_by_one: false,
            cubins: None,
            watch: None,
        }
    }
}

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
    /// Which of the two steps' buffers it reads.
    pub(crate) step: usize,
}

impl PlanKey {
    pub(crate) fn new(plan: &Plan, step: usize) -> Self {
        let Plan { phase, switches, slots, rows, context, logit_rows, tail, .. } = *plan;
        PlanKey { phase, switches, slots, rows, context, logit_rows, tail, step }
    }
}

/// Executes plans on an NVIDIA GPU.
pub struct CudaDevice {
    // In the order in which they have to go.
    plans: HashMap<PlanKey, Prepared>,
    modules: Modules,
    pub(crate) sequences: Sequences<Pool>,
    pub(crate) buffers: Buffers,
    logits: Pinned,
    /// Of steps under way, in turn.
    pub(crate) inboxes: [Inbox; STEPS_UNDER_WAY],
    pub(crate) geometry: Geometry,
    options: CudaOptions,
    gpu: Gpu,
    /// The first error after which the context did not work any more.
    broken: Option<String>,
    pub(crate) context: Arc<Context>,
}

impl CudaDevice {
    /// A device for a model of this geometry, whose weights ([`Weights::packed`]) are copied to the GPU now.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the weights do not fit.
    pub fn new(
        gpu: &Gpu,
        geometry: &Geometry,
        weights: &Weights,
        source: &dyn TensorSource,
        packing: &Packing,
        options: &CudaOptions,
    ) -> Result<Self, DeviceError> {
        let failed = |text: String| DeviceError::Failed(text);
        let profile = &options.profile;
        check_limits(geometry, profile).map_err(|e| failed(e.to_string()))?;
        let context = gpu.context.clone();
        context.enter()?;
        let target = Target { geometry, weights, profile };
        let buffers = Buffers::new(&context, target, source, packing, options.watch.as_ref())?;
        let (cubins, watch) = (options.cubins.clone(), options.watch.clone());
        let modules =
            Modules::new(&context, Codes::new(gpu.origins.clone(), cubins, gpu.found.architecture(), watch));
        let pool = |what, bytes| Pool::new(&context, what, bytes);
        Ok(CudaDevice {
            plans: HashMap::new(),
            modules,
            sequences: Sequences::new(geometry, profile.activation, options.state_bytes, pool)?,
            buffers,
            logits: Pinned::new(&context, "logits on the host", 0)?,
            inboxes: [Inbox::new(&context)?, Inbox::new(&context)?],
            geometry: geometry.clone(),
            options: options.clone(),
            gpu: gpu.clone(),
            broken: None,
            context,
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Compiles and loads the kernels of a plan before its first run.
    pub fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let (set, cores) = (self.options.kernels, self.gpu.found.cores);
        self.guard(|device| device.modules.load(variants(plan, set, cores).into_iter()))
    }

    /// Runs something with the context current. An error behind which the context does not work is remembered: everything
    /// fails with it from then on.
    pub(crate) fn guard<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if let Some(first) = &self.broken {
            let text = format!("the GPU's context was lost by an earlier error, start again: {first}");
            return Err(DeviceError::Failed(text));
        }
        self.context.enter()?;
        let result = run(self);
        if let Err(DeviceError::Failed(text)) = &result
            && self.context.wait().is_err()
        {
            self.broken = Some(text.clone());
        }
        result
    }

    /// What both ways to run a plan check.
    pub(crate) fn check(&self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.activation != self.options.profile.activation {
            let (plan, device) = (plan.activation.name(), self.options.profile.activation.name());
            return Err(DeviceError::Failed(format!(
                "a plan of {plan} activations, on a device of {device}"
            )));
        }
        batch.check(plan, &self.geometry)
    }

    /// Buffers as long as a plan needs them, and the plan with their addresses.
    pub(crate) fn prepare(&mut self, plan: &Plan, step: usize) -> Result<&mut Prepared, DeviceError> {
        let layout = StepLayout::of(plan);
        self.buffers.reserve(plan, layout, self.geometry.vocab)?;
        let key = PlanKey::new(plan, step);
        let mut addresses = self.buffers.addresses(&self.sequences, self.geometry.layers.len());
        if !self.plans.get_mut(&key).is_some_and(|ready| ready.holds(plan, &addresses)) {
            let (set, cores) = (self.options.kernels, self.gpu.found.cores);
            self.modules.load(variants(plan, set, cores).into_iter())?;
            let layers = self.geometry.layers.iter().filter(|kind| **kind == LayerKind::Delta).count();
            self.buffers.scratch.reserve("scratch", scratch_bytes(plan, set, cores)?)?;
            addresses = self.buffers.addresses(&self.sequences, self.geometry.layers.len());
            let bound = Bound { buffers: &self.buffers, sequences: &self.sequences, layout, step };
            let ready = Prepared::new(plan, (set, cores), &bound, &self.modules, addresses, layers)?;
            if self.plans.len() >= PLANS_KEPT {
                self.plans.clear();
            }
            self.plans.insert(key, ready);
        }
        let missing = || DeviceError::Failed("a plan that was made ready is gone".into());
        self.plans.get_mut(&key).ok_or_else(missing)
    }

    /// Enqueues a plan whose input is in the buffers of `step`. Returns whether it moves recurrent states.
    pub(crate) fn enqueue(&mut self, plan: &Plan, step: usize) -> Result<bool, DeviceError> {
        let (context, graphs) = (self.context.clone(), self.options.graphs && plan.phase == Phase::Decode);
        let one_by_one = self.options.one_by_one;
        let ready = self.prepare(plan, step)?;
        ready.run(&context, graphs, one_by_one)?;
        Ok(ready.moves_states)
    }

    /// Runs a plan launch by launch, without a graph, and returns what each took in seconds, in their order: from the end of
    /// the one before, so that the cost of a launch that no other work hides is part of it.
    ///
    /// # Errors
    /// As [`Device::run`].
    pub fn run_timed(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<Vec<f64>, DeviceError> {
        self.guard(|device| {
            device.check(plan, batch)?;
            let slots = device.sequences.slots(batch.sequences, plan.context)?;
            device.prepare(plan, 0)?;
            device.buffers.send(0, StepLayout::of(plan), batch.tokens, batch.positions, &slots)?;
            let context = device.context.clone();
            let ready = device.prepare(plan, 0)?;
            let (times, moves_states) = (ready.run_timed(&context)?, ready.moves_states);
            if moves_states {
                batch.sequences.iter().try_for_each(|id| device.sequences.flip(*id))?;
            }
            Ok(times)
        })
    }

    fn run_plan(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.tail != Tail::Logits {
            return Err(DeviceError::Unknown("a plan that chooses tokens runs in steps".into()));
        }
        self.check(plan, batch)?;
        let slots = self.sequences.slots(batch.sequences, plan.context)?;
        // First, so that the input is copied to where the plan reads it.
        self.prepare(plan, 0)?;
        self.buffers.send(0, StepLayout::of(plan), batch.tokens, batch.positions, &slots)?;
        let moves_states = self.enqueue(plan, 0)?;
        if plan.logit_rows > 0 {
            let bytes = 4 * plan.logit_rows * self.geometry.vocab;
            self.logits.reserve("logits on the host", bytes)?;
            self.buffers.logits.read_into(0..bytes, &mut self.logits, 0)?;
            let wait = self.context.wait();
            wait.map_err(|e| DeviceError::Failed(format!("in a {} plan: {e}", phase(plan.phase))))?;
        }
        if moves_states {
            batch.sequences.iter().try_for_each(|id| self.sequences.flip(*id))?;
        }
        Ok(())
    }
}

pub(crate) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        format!("{}, {} activations", self.gpu.describe(), self.options.profile.activation.name())
    }

    fn profile(&self) -> &Profile {
        &self.options.profile
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        self.guard(|device| device.sequences.open())
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.close(sequence);
    }

    fn snapshot(&mut self, sequence: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        self.guard(|device| device.sequences.snapshot(sequence, length))
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.guard(|device| device.sequences.restore(snapshot))
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        self.sequences.discard(snapshot);
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        self.sequences.snapshot_bytes(snapshot)
    }

    fn state_bytes(&self) -> usize {
        self.sequences.bytes()
    }

    fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        self.guard(|device| device.sequences.reserve(rooms))
    }

    fn make_up(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        let activation = self.options.profile.activation;
        self.guard(|device| device.sequences.make_up(sequence, tokens, activation))
    }

    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.guard(|device| device.run_plan(plan, batch))
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.logits.floats(row * self.geometry.vocab, self.geometry.vocab)
    }

    fn chooses(&self) -> bool {
        true
    }

    fn begin_steps(&mut self, plan: &Plan, batch: &Batch<'_>, choices: &Choices) -> Result<(), DeviceError> {
        self.guard(|device| device.begin(plan, batch, choices))
    }

    fn submit_step(&mut self, plan: &Plan, step: usize) -> Result<(), DeviceError> {
        self.guard(|device| device.submit(plan, step))
    }

    fn take_step(&mut self, plan: &Plan, step: usize) -> Result<Vec<u32>, DeviceError> {
        self.guard(|device| device.taken(plan, step))
    }

    fn move_states(&mut self, sequences: &[SequenceId]) -> Result<(), DeviceError> {
        sequences.iter().try_for_each(|id| self.sequences.flip(*id))
    }

    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        self.context.enter()?;
        let (pool, place) = self.sequences.part(sequence, part)?;
        let range = pool.range(place);
        let mut bytes = vec![0; range.len()];
        pool.block().read(range.start, &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
