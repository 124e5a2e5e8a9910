//! The device: sequences, buffers and runs.

use std::collections::HashMap;

use lily_model::device::{
    self, Batch, Choices, Device, Place, Room, Sequences, StatePart, StepLayout, TensorSource, Trace, Watch,
};
use lily_model::plan::{Plan, Profile, Tail, Target, check_limits};
use lily_model::{DeviceError, Geometry, LayerKind, Packing, SequenceId, SnapshotId, Weights};

use crate::buffers::{At, Bound, Buffers, bytes_of, words_of};
use crate::estimate::Rates;
use crate::gpu::{Block, Commands, Gpu, QueueKind};
use crate::hand_over::Underway;
use crate::load::{self, Loaded};
use crate::pipelines::{Dialect, Pipelines};
use crate::pool::Pool;
use crate::prepared::{Bindings, PlanKey, Prepared, Work, dispatches};
use crate::queue::{Owner, Queue};

/// The most plans that are kept ready. Prefill plans depend on the number of rows, so a server sees many.
const PLANS_KEPT: usize = 64;

/// How a [`MetalDevice`] works.
#[derive(Clone)]
pub struct MetalOptions {
    /// What plans are built by: the type of activations, mechanisms, thresholds.
    pub profile: Profile,
    /// How texts are compiled.
    pub dialect: Dialect,
    /// The most bytes that keys, values and recurrent states may take together.
    pub state_bytes: usize,
    /// Who is told of progress.
    pub watch: Option<Watch>,
}

impl MetalOptions {
    /// Without anybody who watches.
    pub fn new(profile: Profile, dialect: Dialect, state_bytes: usize) -> Self {
        MetalOptions { profile, dialect, state_bytes, watch: None }
    }
}

/// Executes plans on an Apple GPU.
pub struct MetalDevice<G: Gpu> {
    gpu: G,
    pub(crate) queue: Queue<G>,
    plans: HashMap<PlanKey, Prepared<G>>,
    pipelines: Pipelines<G>,
    pub(crate) sequences: Sequences<Pool<G>>,
    pub(crate) buffers: Buffers<G>,
    /// Which of the two steps' buffers the last run read.
    turn: usize,
    /// Of each, the last submission that reads or writes it.
    used: [u64; 2],
    pub(crate) under_way: Underway,
    logits: Vec<f32>,
    pub(crate) geometry: Geometry,
    options: MetalOptions,
    /// Each stage is submitted by itself, since a GPU tells times of submissions.
    is_traced: bool,
    /// Weights are those of the file, and not copies.
    maps_weights: bool,
}

impl<G: Gpu> MetalDevice<G> {
    /// A device for a model of this geometry, whose weights ([`Weights::packed`]) are mapped where they are if they stand in pages
    /// ([`lily_model::pack`]), else copied to buffers now.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where the weights do not fit.
    pub fn new(
        gpu: &G,
        geometry: &Geometry,
        weights: &Weights,
        source: &dyn TensorSource,
        packing: &Packing,
        options: &MetalOptions,
    ) -> Result<Self, DeviceError> {
        let failed = |text: String| DeviceError::Failed(text);
        let profile = &options.profile;
        check_limits(geometry, profile).map_err(|e| failed(e.to_string()))?;
        let target = Target { geometry, weights, profile };
        let Loaded { layout, blocks, are_mapped } =
            load::weights(gpu, target, source, packing, options.watch.as_ref())?;
        gpu.keep_resident(&blocks);
        let queue = Queue::new(gpu);
        let pool = |what, bytes| Pool::new(gpu, &queue, what, bytes);
        let sequences = Sequences::new(geometry, profile.activation, options.state_bytes, pool)?;
        Ok(MetalDevice {
            gpu: gpu.clone(),
            plans: HashMap::new(),
            pipelines: Pipelines::new(gpu, options.dialect, profile.activation, options.watch.clone()),
            sequences,
            buffers: Buffers::new(gpu, layout, blocks)?,
            turn: 1,
            used: [0, 0],
            under_way: Underway::default(),
            logits: Vec::new(),
            geometry: geometry.clone(),
            options: options.clone(),
            is_traced: false,
            maps_weights: are_mapped,
            queue,
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &G {
        &self.gpu
    }

    /// Compiles the kernels of plans before their first run, those of all of them at the same time.
    pub fn load(&mut self, plans: &[Plan]) -> Result<(), DeviceError> {
        let all: Result<Vec<_>, _> = plans.iter().map(dispatches).collect();
        self.pipelines.load(&all?.concat())
    }

    /// What both ways to run a plan check.
    pub(crate) fn check(&self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.activation != self.options.profile.activation {
            let (plan, device) = (plan.activation.name(), self.options.profile.activation.name());
            return Err(DeviceError::Failed(format!(
                "a plan of {plan} activations, on a device of {device}"
            )));
        }
        batch.check(plan, &self.geometry)?;
        self.queue.check(&owners(batch.sequences))
    }

    /// Buffers as long as a plan needs them, and the plan made ready.
    pub(crate) fn prepare(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.buffers.reserve(plan, self.geometry.vocab)?;
        let key = PlanKey::new(plan);
        if !self.plans.get_mut(&key).is_some_and(|ready| ready.holds(plan)) {
            self.pipelines.load(&dispatches(plan)?)?;
            let layers = self.geometry.layers.iter().filter(|kind| **kind == LayerKind::Delta).count();
            let bound =
                Bound { buffers: &self.buffers, sequences: &self.sequences, layout: StepLayout::of(plan) };
            let memory = self.gpu.facts().threadgroup_memory;
            let rates = Rates::of(&self.options.profile);
            let ready = Prepared::new(plan, &bound, &self.pipelines, rates, memory, layers)?;
            if self.plans.len() >= PLANS_KEPT {
                self.plans.clear();
            }
            self.plans.insert(key, ready);
        }
        Ok(())
    }

    /// Waits until nothing that was submitted uses the input of a step.
    pub(crate) fn wait_for_turn(&self, turn: usize) -> Result<(), DeviceError> {
        self.queue.wait_for(self.used[turn])
    }

    /// Writes a plan down that was made ready, whose input is that of `turn`. Returns whether it moves recurrent states.
    pub(crate) fn write_down(&self, plan: &Plan, turn: usize) -> Result<bool, DeviceError> {
        let ready = self.plans.get(&PlanKey::new(plan));
        let ready = ready.ok_or_else(|| DeviceError::Failed("a plan that was made ready is gone".into()))?;
        let what = device::phase_name(plan.phase);
        let mut stages = plan.stages.iter();
        for step in &ready.steps {
            let stage = if step.begins_stage { stages.next() } else { None };
            let label = || match stage.filter(|_| self.is_traced) {
                Some(stage) => device::stage_label(plan, stage),
                None => format!("{what}: {}", step.name),
            };
            if step.begins_stage && self.is_traced {
                self.queue.cut()?;
            }
            match &step.work {
                Work::Kernel(bindings) => {
                    self.queue.dispatch(&label, step.seconds, step.begins_stage, |commands| {
                        self.dispatch(bindings, turn, commands);
                    })?;
                }
                Work::Group { kernel, ids, order, tiles } => {
                    self.queue.cut()?;
                    self.queue.wait()?;
                    let (order_words, tile_words) = device::group(kernel, &words_of(&self.read(*ids, turn)));
                    self.write(*order, turn, &order_words);
                    self.write(*tiles, turn, &tile_words);
                }
            }
        }
        Ok(ready.moves_states)
    }

    fn dispatch(&self, bindings: &Bindings<G>, turn: usize, commands: &mut G::Commands) {
        commands.pipeline(&bindings.pipeline);
        for (number, At { which, offset }) in &bindings.buffers {
            if let Some(buffer) = self.buffers.find(&self.sequences, turn, *which) {
                commands.buffer(*number, buffer, *offset);
            }
        }
        if let Some((number, words)) = &bindings.words {
            commands.words(*number, words);
        }
        for (number, bytes) in &bindings.memory {
            commands.threadgroup_memory(*number, *bytes);
        }
        commands.dispatch(bindings.groups, bindings.threads);
    }

    fn read(&self, place: Place<At>, turn: usize) -> Vec<u8> {
        let mut bytes = vec![0; place.bytes];
        if let Some(buffer) = self.buffers.find(&self.sequences, turn, place.start.which) {
            buffer.read(place.start.offset, &mut bytes);
        }
        bytes
    }

    fn write(&self, place: Place<At>, turn: usize, words: &[u32]) {
        if let Some(buffer) = self.buffers.find(&self.sequences, turn, place.start.which) {
            buffer.write(place.start.offset, &bytes_of(words)[..place.bytes.min(4 * words.len())]);
        }
    }

    /// The last submission that uses the input of a step.
    pub(crate) fn used(&mut self, turn: usize, serial: u64) {
        self.used[turn] = serial;
    }

    fn run_plan(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if plan.tail != Tail::Logits {
            return Err(DeviceError::Unknown("a plan that chooses tokens runs in steps".into()));
        }
        self.check(plan, batch)?;
        let slots = self.sequences.slots(batch.sequences, plan.context)?;
        self.prepare(plan)?;
        let (turn, owners) = (1 - self.turn, owners(batch.sequences));
        self.wait_for_turn(turn)?;
        self.queue.check(&owners)?;
        self.buffers.send(turn, StepLayout::of(plan), batch.tokens, batch.positions, &slots)?;
        self.queue.begin(&owners)?;
        let written = self.write_down(plan, turn).and_then(|moves| Ok((moves, self.queue.submit()?)));
        let (moves_states, serial) = written.inspect_err(|error| self.queue.abandon(error))?;
        self.used(turn, serial);
        self.turn = turn;
        if moves_states {
            batch.sequences.iter().try_for_each(|id| self.sequences.flip(*id))?;
        }
        if plan.logit_rows > 0 {
            self.queue.wait()?;
            self.queue.check(&owners)?;
            let mut bytes = vec![0; 4 * plan.logit_rows * self.geometry.vocab];
            self.buffers.logits.buffer().read(0, &mut bytes);
            self.logits.clear();
            self.logits.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
        }
        Ok(())
    }
}

/// Those whose states a batch moves.
pub(crate) fn owners(sequences: &[SequenceId]) -> Vec<Owner> {
    sequences.iter().map(|id| Owner::Sequence(*id)).collect()
}

impl<G: Gpu> Device for MetalDevice<G> {
    fn describe(&self) -> String {
        let (facts, dialect) = (self.gpu.facts(), self.options.dialect);
        let tiles = if dialect.tensors { "tensor operations, " } else { "" };
        let activation = self.options.profile.activation.name();
        let queue = match self.gpu.queue_kind() {
            QueueKind::Classic => "",
            QueueKind::Metal4 => ", queue of Metal 4",
        };
        let mapped = if self.maps_weights { ", weights mapped" } else { "" };
        format!(
            "{} ({}, Metal {}{queue}), {tiles}{activation} activations{mapped}",
            facts.name,
            facts.system,
            dialect.language.name()
        )
    }

    fn profile(&self) -> &Profile {
        &self.options.profile
    }

    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        let id = self.sequences.open()?;
        self.queue.own_open(&[], &[Owner::Sequence(id)]);
        Ok(id)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.close(sequence);
        self.queue.forget(Owner::Sequence(sequence));
    }

    fn snapshot(&mut self, sequence: SequenceId, length: usize) -> Result<SnapshotId, DeviceError> {
        self.queue.check(&[Owner::Sequence(sequence)])?;
        let id = self.sequences.snapshot(sequence, length)?;
        self.queue.own_open(&[Owner::Sequence(sequence)], &[Owner::Snapshot(id)]);
        Ok(id)
    }

    fn restore(&mut self, snapshot: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.queue.check(&[Owner::Snapshot(snapshot)])?;
        let id = self.sequences.restore(snapshot)?;
        self.queue.own_open(&[Owner::Snapshot(snapshot)], &[Owner::Sequence(id)]);
        Ok(id)
    }

    fn discard(&mut self, snapshot: SnapshotId) {
        self.sequences.discard(snapshot);
        self.queue.forget(Owner::Snapshot(snapshot));
    }

    fn snapshot_bytes(&self, snapshot: SnapshotId) -> usize {
        self.sequences.snapshot_bytes(snapshot)
    }

    fn state_bytes(&self) -> usize {
        self.sequences.bytes()
    }

    fn reserve(&mut self, rooms: &[Room]) -> Result<(), DeviceError> {
        let owners = owners(&rooms.iter().map(|room| room.sequence).collect::<Vec<_>>());
        self.queue.part(&owners)?;
        self.sequences.reserve(rooms)?;
        // Pages that were shared may have been copied.
        self.queue.own_open(&[], &owners);
        Ok(())
    }

    fn make_up(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), DeviceError> {
        let activation = self.options.profile.activation;
        self.sequences.make_up(sequence, tokens, activation)
    }

    fn trace(&mut self, trace: Trace) -> Result<(), DeviceError> {
        self.queue.trace(trace);
        self.is_traced = true;
        Ok(())
    }

    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.run_plan(plan, batch)
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row * self.geometry.vocab..][..self.geometry.vocab]
    }

    fn chooses(&self) -> bool {
        true
    }

    fn begin_steps(&mut self, plan: &Plan, batch: &Batch<'_>, choices: &Choices) -> Result<(), DeviceError> {
        self.begin(plan, batch, choices)
    }

    fn submit_step(&mut self, plan: &Plan, step: usize) -> Result<(), DeviceError> {
        self.submit(plan, step)
    }

    fn take_step(&mut self, plan: &Plan, step: usize) -> Result<Vec<u32>, DeviceError> {
        self.taken(plan, step)
    }

    fn move_states(&mut self, sequences: &[SequenceId]) -> Result<(), DeviceError> {
        sequences.iter().try_for_each(|id| self.sequences.flip(*id))
    }

    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        self.queue.submit()?;
        self.queue.wait()?;
        self.queue.check(&[Owner::Sequence(sequence)])?;
        let (pool, place) = self.sequences.part(sequence, part)?;
        let range = pool.range(place);
        let mut bytes = vec![0; range.len()];
        pool.buffer().read(range.start, &mut bytes);
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
