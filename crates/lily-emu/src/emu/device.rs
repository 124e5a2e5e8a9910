//! The device: runs a plan's stages, launch after launch, in an order that nobody may rely on.

use std::collections::HashMap;
use std::sync::Arc;

use lily_kernels::Access;
#[cfg(feature = "touch")]
use lily_kernels::Traffic;
use lily_kernels::random::Random;
use lily_model::device::{self, Batch, Choices, Device, Room, Sequences, StatePart, TensorSource};
use lily_model::plan::{Buffer, Launch, Plan, Profile, Tail, check_limits};
use lily_model::{DeviceError, Geometry, LayerKind, Packing, SequenceId, SnapshotId, TensorId};

use super::bind::{Memory, Place, Step};
use super::ffi::{self, Compiled, Exclusive, Texts};
use super::hand_over::Selection;
use super::memory::{Block, POISON, Pool};
use super::workers::Workers;

/// How an [`EmuDevice`] works.
#[derive(Clone, Debug, PartialEq)]
pub struct EmuOptions {
    /// What plans are built by: the type of activations, mechanisms, thresholds.
    pub profile: Profile,
    /// Host threads that share a launch; `None` takes one for each processor that this process may use. With the feature
    /// `touch` it is one.
    pub threads: Option<usize>,
    /// Shuffles the launches of each stage and the threads of each threadgroup; 0 leaves both in order.
    pub seed: u32,
    /// The most bytes that keys, values and recurrent states may take together.
    pub state_bytes: usize,
}

/// What a launch touched of an operand. Per-slot operands count for all slots together.
#[cfg(feature = "touch")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The launch's place in the plan.
    pub launch: usize,
    /// The operand's name.
    pub operand: &'static str,
    /// What the contract declares.
    pub declared: Traffic,
    /// What it touched, each byte once.
    pub touched: Traffic,
}

/// Executes plans in the emulator.
pub struct EmuDevice {
    source: Arc<dyn TensorSource>,
    packing: Packing,
    pub(super) geometry: Geometry,
    options: EmuOptions,
    compiled: Texts,
    workers: Workers,
    random: Random,
    /// Copies of the tensors that plans have used: at the alignment of a GPU's buffers, which files do not have.
    tensors: HashMap<TensorId, Block>,
    arena: Block,
    logits: Block,
    /// The input of the step that runs, and of the one that it hands tokens to.
    pub(super) steps: [Step; 2],
    pub(super) selection: Selection,
    pub(super) state: Sequences<Pool>,
    #[cfg(feature = "touch")]
    touched: Vec<Touched>,
}

/// Of each launch its text, and whether the plan writes recurrent states.
pub(super) struct Ready {
    texts: Vec<Compiled>,
    pub(super) moves_states: bool,
}

impl EmuDevice {
    /// A device for a model of this geometry, whose weights are packed so.
    pub fn new(
        geometry: &Geometry,
        source: Arc<dyn TensorSource>,
        packing: Packing,
        options: &EmuOptions,
    ) -> Result<Self, DeviceError> {
        check_limits(geometry, &options.profile).map_err(|e| DeviceError::Failed(e.to_string()))?;
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if cfg!(feature = "touch") { 1 } else { options.threads.unwrap_or_else(all) };
        let empty = |what| Block::new(what, 0);
        Ok(EmuDevice {
            source,
            packing,
            geometry: geometry.clone(),
            options: options.clone(),
            compiled: Texts::new(),
            workers: Workers::new(threads)?,
            random: Random::new(u64::from(options.seed)),
            tensors: HashMap::new(),
            arena: empty("activations")?,
            logits: empty("logits")?,
            steps: [Step::new()?, Step::new()?],
            selection: Selection::new()?,
            state: Sequences::new(geometry, options.profile.activation, options.state_bytes, Pool::new)?,
            #[cfg(feature = "touch")]
            touched: Vec::new(),
        })
    }

    /// What each launch of the last run touched, in the order of the plan.
    #[cfg(feature = "touch")]
    pub fn touched(&self) -> &[Touched] {
        &self.touched
    }

    /// Memory for a plan, poisoned, and what the batch brings.
    pub(super) fn prepare(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.activation != self.options.profile.activation {
            let (plan, device) = (plan.activation.name(), self.options.profile.activation.name());
            return Err(DeviceError::Failed(format!(
                "a plan of {plan} activations, on a device of {device}"
            )));
        }
        batch.check(plan, &self.geometry)?;
        let slots = self.state.slots(batch.sequences, plan.context)?;
        self.steps[0].fill(batch.tokens, batch.positions, &slots)?;
        for view in plan.launches.iter().flat_map(|l| &l.bindings) {
            if let Buffer::Tensor(id) = view.buffer
                && !self.tensors.contains_key(&id)
            {
                let tensor = match self.packing.parts(id) {
                    Some(parts) => parts.iter().flat_map(|part| self.source.bytes(*part)).copied().collect(),
                    None => self.source.bytes(id).to_vec(),
                };
                self.tensors.insert(id, Block::of("a tensor", &tensor)?);
            }
        }
        Ok(())
    }

    /// What can be found out before any launch runs.
    pub(super) fn ready(&self, plan: &Plan) -> Result<Ready, DeviceError> {
        let layers = self.geometry.layers.iter().filter(|kind| **kind == LayerKind::Delta).count();
        Ok(Ready { texts: self.texts(plan)?, moves_states: device::moves_states(plan, layers)? })
    }

    /// Runs every launch over poisoned memory.
    pub(super) fn run_stages(&mut self, plan: &Plan, ready: &Ready) -> Result<(), DeviceError> {
        self.arena.reset("activations", plan.arena_bytes)?;
        self.logits.reset("logits", 4 * plan.logit_rows * self.geometry.vocab)?;
        #[cfg(feature = "touch")]
        self.touched.clear();
        for stage in &plan.stages {
            let mut order: Vec<usize> = stage.clone().collect();
            if self.options.seed != 0 {
                (1..order.len()).for_each(|i| order.swap(i, self.random.below(i + 1)));
            }
            for index in order {
                self.launch(plan, index, ready.texts[index])?;
            }
        }
        #[cfg(feature = "touch")]
        self.touched.sort_by_key(|t| t.launch);
        Ok(())
    }

    fn texts(&self, plan: &Plan) -> Result<Vec<Compiled>, DeviceError> {
        let compiled = |launch: &Launch| {
            let dispatch = launch.kernel.dispatch();
            dispatch.and_then(|d| self.compiled.get(d.text.name, self.options.profile.activation)).ok_or_else(
                || {
                    let (name, label) = (launch.kernel.name(), launch.label);
                    DeviceError::Failed(format!("the emulator has no text of kernel {name} ({label})"))
                },
            )
        };
        plan.launches.iter().map(compiled).collect()
    }

    fn launch(&mut self, plan: &Plan, index: usize, compiled: Compiled) -> Result<(), DeviceError> {
        let launch = &plan.launches[index];
        let Some(dispatch) = launch.kernel.dispatch() else { return Ok(()) };
        let memory = Memory {
            tensors: &self.tensors,
            arena: &self.arena,
            logits: &self.logits,
            step: &self.steps[0],
            next: &self.steps[1],
            selection: &self.selection,
            state: &self.state,
        };
        let operands = launch.kernel.operands();
        let places = device::operands(&memory, launch)?;
        for (operand, place) in operands.iter().zip(&places) {
            if operand.access == Access::Write && !operand.per_slot {
                // SAFETY: inside of its buffer (`device::operands`), and no launch runs.
                unsafe { place.start.write_bytes(POISON, place.bytes) };
            }
        }
        let buffers = device::buffers(&memory, dispatch.text, operands, &places)?;
        let buffers = buffers.into_iter().map(|start| start.unwrap_or(std::ptr::null_mut())).collect();
        // SAFETY: operands are bound by name to bytes that the plan gives them, which are inside of their buffers; that those
        // are as many as the kernel touches is the plan's promise, held by its tests. `self` is borrowed until the end.
        let ready = unsafe { ffi::Launch::new(compiled, &dispatch, buffers) };
        let exclusive = Exclusive::new(compiled, &dispatch.constants, self.options.seed);
        #[cfg(feature = "touch")]
        return self.record(plan, index, &exclusive, &places, ready);
        #[cfg(not(feature = "touch"))]
        {
            let _ = (&exclusive, &places as &[Place]);
            self.workers.run(ready)
        }
    }

    #[cfg(feature = "touch")]
    fn record(
        &mut self,
        plan: &Plan,
        index: usize,
        exclusive: &Exclusive,
        places: &[Place],
        ready: ffi::Launch,
    ) -> Result<(), DeviceError> {
        let watched: Vec<(*const u8, usize)> =
            places.iter().map(|p| (p.start.cast_const(), p.bytes)).collect();
        let mut done = Ok(());
        let bytes = ffi::touch::record(exclusive, &watched, || done = self.workers.run(ready));
        let kernel = &plan.launches[index].kernel;
        let declared = kernel.traffic(self.options.profile.activation);
        for ((operand, declared), (read, written)) in kernel.operands().iter().zip(declared).zip(bytes) {
            let touched = Traffic { read, written };
            self.touched.push(Touched { launch: index, operand: operand.name, declared, touched });
        }
        done
    }
}

impl Device for EmuDevice {
    fn describe(&self) -> String {
        let (threads, activation) = (self.workers.threads(), self.options.profile.activation.name());
        let s = if threads == 1 { "" } else { "s" };
        format!("emulated GPU, {activation} activations, {threads} thread{s}, seed {}", self.options.seed)
    }

    fn profile(&self) -> &Profile {
        &self.options.profile
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        self.state.open()
    }

    fn close(&mut self, sequence: SequenceId) {
        self.state.close(sequence);
    }

    fn snapshot(&mut self, sequence: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        self.state.snapshot(sequence, length)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.state.restore(snapshot)
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        self.state.discard(snapshot);
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        self.state.snapshot_bytes(snapshot)
    }

    fn state_bytes(&self) -> usize {
        self.state.bytes()
    }

    fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        self.state.reserve(rooms)
    }

    fn make_up(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        self.state.make_up(sequence, tokens, self.options.profile.activation)
    }

    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.tail != Tail::Logits {
            return Err(DeviceError::Unknown("a plan that chooses tokens runs in steps".into()));
        }
        let ready = self.ready(plan)?;
        self.prepare(plan, batch)?;
        self.run_stages(plan, &ready)?;
        if ready.moves_states {
            batch.sequences.iter().try_for_each(|id| self.state.flip(*id))?;
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.logits.f32(row * self.geometry.vocab, self.geometry.vocab)
    }

    fn chooses(&self) -> bool {
        true
    }

    fn begin_steps(&mut self, plan: &Plan, batch: &Batch<'_>, choices: &Choices) -> Result<(), DeviceError> {
        self.begin(plan, batch, choices)
    }

    fn submit_step(&mut self, plan: &Plan, _step: usize) -> Result<(), DeviceError> {
        self.submit(plan)
    }

    fn take_step(&mut self, _plan: &Plan, _step: usize) -> Result<Vec<u32>, DeviceError> {
        self.taken()
    }

    fn move_states(&mut self, sequences: &[SequenceId]) -> Result<(), DeviceError> {
        sequences.iter().try_for_each(|id| self.state.flip(*id))
    }

    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        let (pool, place) = self.state.part(sequence, part)?;
        Ok(pool.bytes(place).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
