//! The device: resolves a plan's bindings to memory and runs its stages on the pool.

use std::ops::Range;
use std::sync::Arc;

use lily_kernels::Kernel;
use lily_model::device::{self, Batch, Device, Room, Span, StatePart, TensorSource, Trace};
use lily_model::plan::{Buffer, Launch, Plan, Profile, View};
use lily_model::{DeviceError, Geometry, SequenceId, SnapshotId};

use crate::kernels;
use crate::memory::{Args, Block, Bound};
use crate::pool::Pool;
use crate::precision::Precision;
use crate::rounded::{RowShape, Rows};
use crate::simd::{Isa, Loops};
use crate::state::{PageTable, State};

/// How a [`CpuDevice`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads; `None` takes one for each processor that this process may use.
    pub threads: Option<usize>,
    /// Keep each thread on its own processor, where there is a thread for each: with fewer, two programs that pin would
    /// share the first processors and leave the others idle.
    pub pin: bool,
    /// The instruction set; `None` takes the best.
    pub isa: Option<Isa>,
    /// Rounding of activations.
    pub precision: Precision,
    /// The most bytes that keys, values and recurrent states may take together.
    pub state_bytes: usize,
}

impl CpuOptions {
    /// The instruction set and its loops.
    pub(crate) fn loops(&self) -> Result<(Isa, Loops), DeviceError> {
        let isa = self.isa.unwrap_or_else(|| Isa::available()[0]);
        let loops = Loops::new(isa);
        let missing = || DeviceError::Failed(format!("this processor does not have {}", isa.name()));
        Ok((isa, loops.ok_or_else(missing)?))
    }

    /// The threads, and whether the one that asks them to work has to pin itself as well.
    pub(crate) fn pool(&self) -> (Pool, bool) {
        let all = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = self.threads.unwrap_or(all).max(1);
        let pin = self.pin && threads == all;
        (Pool::new(threads, pin), pin)
    }
}

/// Executes plans on the CPU.
pub struct CpuDevice {
    tensors: Arc<dyn TensorSource>,
    geometry: Geometry,
    profile: Profile,
    pool: Pool,
    isa: Isa,
    loops: Loops,
    precision: Precision,
    pin: bool,
    arena: Block,
    /// Activations of a stage as integers.
    rounded: Block,
    logits: Block,
    rows: Block,
    state: State,
    trace: Option<Trace>,
}

impl CpuDevice {
    /// A device for a model of this geometry.
    pub fn new(
        geometry: &Geometry,
        tensors: Arc<dyn TensorSource>,
        options: &CpuOptions,
    ) -> Result<Self, DeviceError> {
        let (isa, loops) = options.loops()?;
        let (pool, pin) = options.pool();
        Ok(CpuDevice {
            tensors,
            geometry: geometry.clone(),
            profile: Profile::cpu(),
            pool,
            isa,
            loops,
            precision: options.precision,
            pin,
            arena: Block::default(),
            rounded: Block::default(),
            logits: Block::default(),
            rows: Block::default(),
            state: State::new(geometry, options.state_bytes),
            trace: None,
        })
    }

    /// Memory for a plan and the token ids and positions of a batch.
    fn prepare(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let total = plan.slots * plan.rows;
        let fits = batch.sequences.len() == plan.slots
            && batch.tokens.len() == total
            && batch.positions.len() == total
            && batch.tokens.iter().all(|t| (*t as usize) < self.geometry.vocab)
            && batch.positions.iter().all(|p| (*p as usize) < plan.context);
        if !fits {
            return Err(DeviceError::Unknown("the batch does not fit its plan".into()));
        }
        let out = |what| move |need_bytes| DeviceError::OutOfMemory { what, need_bytes, left_bytes: 0 };
        self.arena.grow(plan.arena_bytes).map_err(out("activations"))?;
        self.logits.grow(4 * plan.logit_rows * self.geometry.vocab).map_err(out("logits"))?;
        self.rows.grow(8 * total).map_err(out("token ids"))?;
        let rows = self.rows.as_mut_ptr().cast::<u32>();
        for (i, value) in batch.tokens.iter().chain(batch.positions).enumerate() {
            // SAFETY: the block holds 2 * total u32 (grown above) and is not shared now.
            unsafe { rows.add(i).write(*value) };
        }
        Ok(())
    }
}

impl CpuDevice {
    /// Rounds what the launches of a stage take as integers: each row once, however many launches read it.
    fn round<'a>(
        &mut self,
        launches: &'a [Launch],
        memory: &Memory<'a>,
    ) -> Result<Vec<Rounded<'a>>, DeviceError> {
        let mut wanted: Vec<(&View, usize, RowShape)> = Vec::new();
        for found in launches.iter().filter_map(rounds) {
            if !wanted.contains(&found) {
                wanted.push(found);
            }
        }
        let need = wanted.iter().map(|(_, rows, shape)| rows * shape.bytes()).sum();
        let out = |need_bytes| DeviceError::OutOfMemory { what: "activations", need_bytes, left_bytes: 0 };
        self.rounded.grow(need).map_err(out)?;
        let mut start = self.rounded.as_mut_ptr();
        let mut all = Vec::with_capacity(wanted.len());
        for (view, rows, shape) in wanted {
            // SAFETY: the block is aligned and as long as all of these together (grown above); it does not grow again
            // before the stage has run, and only rounding, below, writes it.
            let rounded = Rounded { view, rows: unsafe { Rows::new(start, rows, shape) } };
            start = start.wrapping_add(rows * shape.bytes());
            let x = Args::new(vec![memory.resolve(view, &self.state)?], None);
            let loops = self.loops;
            let task = |row| {
                // SAFETY: task i writes row i only.
                unsafe { kernels::round(&loops, x.f32(kernels::ROUNDED_OPERAND), rounded.rows, row) };
            };
            if rows < ROWS_TO_SHARE {
                (0..rows).for_each(task);
            } else {
                let blocks = rows.div_ceil(ROWS_TO_SHARE);
                let block = |i: usize| i * ROWS_TO_SHARE..((i + 1) * ROWS_TO_SHARE).min(rows);
                self.pool.run(blocks, &|i, _| block(i).for_each(task));
            }
            all.push(rounded);
        }
        Ok(all)
    }
}

/// Rows that one thread rounds in less time than it takes to ask another: some microseconds.
const ROWS_TO_SHARE: usize = 16;

/// Page starts of each slot's sequence, kept while a plan runs.
type Pages = Vec<Vec<*mut f32>>;

/// What bindings resolve against.
struct Memory<'a> {
    tensors: &'a dyn TensorSource,
    arena: (*mut u8, usize),
    logits: (*mut u8, usize),
    rows: *mut u8,
    total: usize,
    head_dim: usize,
    pages: &'a Pages,
    recurrent: Vec<(*mut f32, usize)>,
}

impl<'a> Memory<'a> {
    fn resolve(&self, view: &View, state: &State) -> Result<Bound<'a>, DeviceError> {
        let bytes = &view.bytes;
        let part = |p: *mut u8, len: usize| {
            if bytes.end > len {
                return Err(DeviceError::Failed(format!("{view:?} ends past {len} bytes")));
            }
            // SAFETY: within the buffer (checked).
            Ok(Bound::Mutable(unsafe { p.add(bytes.start) }, bytes.len()))
        };
        match view.buffer {
            Buffer::Tensor(id) => {
                let tensor = self.tensors.bytes(id).get(bytes.clone());
                tensor
                    .map(Bound::Constant)
                    .ok_or_else(|| DeviceError::Failed(format!("{view:?} ends past its tensor")))
            }
            Buffer::Arena => part(self.arena.0, self.arena.1),
            Buffer::Logits => part(self.logits.0, self.logits.1),
            Buffer::Tokens => part(self.rows, 4 * self.total),
            // SAFETY: positions stand behind the token ids in one block (`prepare`).
            Buffer::Positions => part(unsafe { self.rows.add(4 * self.total) }, 4 * self.total),
            Buffer::Slots
            | Buffer::NextTokens
            | Buffer::NextPositions
            | Buffer::NextSlots
            | Buffer::Requests
            | Buffer::Counts
            | Buffer::Bias
            | Buffer::Mask
            | Buffer::Chosen => {
                Err(DeviceError::Failed(format!("{view:?}: the CPU device does not choose tokens")))
            }
            Buffer::Keys { slot, layer } => self.paged(state, slot, layer, false),
            Buffer::Values { slot, layer } => self.paged(state, slot, layer, true),
            Buffer::DeltaState { slot, layer } => self.recurrent(slot, state.recurrent_range(layer, false)?),
            Buffer::ConvState { slot, layer } => self.recurrent(slot, state.recurrent_range(layer, true)?),
        }
    }

    fn recurrent(&self, slot: usize, part: Range<usize>) -> Result<Bound<'a>, DeviceError> {
        let (start, len) = self.recurrent[slot];
        assert!(part.end <= len, "recurrent state of {len} values, asked for {part:?}");
        // SAFETY: within the sequence's state (asserted).
        Ok(Bound::Mutable(unsafe { start.add(part.start) }.cast(), 4 * part.len()))
    }

    fn paged(
        &self,
        state: &State,
        slot: usize,
        layer: usize,
        values: bool,
    ) -> Result<Bound<'a>, DeviceError> {
        let offset = state.kv_offset(layer, values);
        Ok(Bound::Paged(PageTable::new(&self.pages[slot], offset, self.head_dim)))
    }
}

impl Device for CpuDevice {
    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("CPU, {threads} thread{}, {}", if threads == 1 { "" } else { "s" }, self.isa.name())
    }

    fn profile(&self) -> &Profile {
        &self.profile
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
        self.state.make_up(sequence, tokens)
    }

    fn trace(&mut self, trace: Trace) -> Result<(), DeviceError> {
        self.trace = Some(trace);
        Ok(())
    }

    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        if let Some(launch) = plan.launches.iter().find(|l| !kernels::offers(&l.kernel)) {
            let name = launch.kernel.name();
            return Err(DeviceError::Failed(format!("the plan is for a GPU: the CPU has no {name}")));
        }
        self.prepare(plan, batch)?;
        if std::mem::take(&mut self.pin) {
            Pool::pin_caller();
        }
        let starts = batch.sequences.iter().map(|s| self.state.page_starts(*s));
        let pages: Pages = starts.collect::<Result<_, _>>()?;
        let recurrent = batch.sequences.iter().map(|s| self.state.recurrent_start(*s));
        let recurrent = recurrent.collect::<Result<_, _>>()?;
        let tensors = self.tensors.clone();
        let memory = Memory {
            tensors: &*tensors,
            arena: (self.arena.as_mut_ptr(), self.arena.bytes()),
            logits: (self.logits.as_mut_ptr(), self.logits.bytes()),
            rows: self.rows.as_mut_ptr(),
            total: plan.slots * plan.rows,
            head_dim: self.geometry.attention.head_dim,
            pages: &pages,
            recurrent,
        };
        let (loops, threads) = (self.loops, self.pool.threads());
        for stage in &plan.stages {
            let start = self.trace.is_some().then(device::clock);
            let launches = &plan.launches[stage.clone()];
            let mut prepared = Vec::with_capacity(launches.len());
            let mut tasks = 0;
            let rounded = match self.precision {
                Precision::Exact => Vec::new(),
                Precision::Fast => self.round(launches, &memory)?,
            };
            for launch in launches {
                let rounded = rounded.iter().find(|r| r.serves(launch)).map(|r| r.rows);
                let args = bind(launch, &memory, &self.state, rounded)?;
                let count = kernels::tasks(&launch.kernel, &args, threads);
                prepared.push((tasks, &launch.kernel, args));
                tasks += count;
            }
            let prepared: &[(usize, &Kernel, Args<'_>)] = &prepared;
            let done = self.pool.run(tasks, &|task, scratch| {
                let at = prepared.partition_point(|(first, ..)| *first <= task) - 1;
                let (first, kernel, args) = &prepared[at];
                kernels::run(kernel, args, &loops, task - first, threads, scratch);
            });
            if !done {
                let labels: Vec<&str> = launches.iter().map(|l| l.label).collect();
                return Err(DeviceError::Failed(format!("a task panicked in {}", labels.join(", "))));
            }
            if let (Some(trace), Some(start)) = (&self.trace, start) {
                trace(&device::stage_label(plan, stage), Span { start, end: device::clock() });
            }
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.logits.f32(row * self.geometry.vocab, self.geometry.vocab)
    }

    fn state(&self, sequence: SequenceId, part: StatePart) -> Result<Vec<f32>, DeviceError> {
        match part {
            StatePart::Delta { layer } => self.state.read(sequence, layer, false),
            StatePart::Conv { layer } => self.state.read(sequence, layer, true),
        }
    }
}

fn bind<'a>(
    launch: &Launch,
    memory: &Memory<'a>,
    state: &State,
    rounded: Option<Rows<'a>>,
) -> Result<Args<'a>, DeviceError> {
    let bound = launch.bindings.iter().map(|view| memory.resolve(view, state));
    Ok(Args::new(bound.collect::<Result<_, _>>()?, rounded))
}

/// Rows of activations that launches of a stage take as integers.
struct Rounded<'a> {
    view: &'a View,
    rows: Rows<'a>,
}

/// What a launch takes as integers.
fn rounds(launch: &Launch) -> Option<(&View, usize, RowShape)> {
    let makes_logits = launch.bindings.iter().any(|view| view.buffer == Buffer::Logits);
    let (rows, shape) = kernels::rounds(&launch.kernel, makes_logits)?;
    Some((&launch.bindings[kernels::ROUNDED_OPERAND], rows, shape))
}

impl Rounded<'_> {
    fn serves(&self, launch: &Launch) -> bool {
        rounds(launch).is_some_and(|(view, _, shape)| view == self.view && shape == self.rows.shape())
    }
}
