//! Everything that plans bind but the states of sequences: weights, activations, logits, the inputs of two steps, and how tokens
//! are chosen.

use std::ops::Range;
use std::sync::Arc;

use lily_kernels::select::Request;
pub(crate) use lily_model::device::StepLayout;
use lily_model::device::{self, Choices, Fresh, Layout, Sequences, TensorSource};
use lily_model::plan::{Buffer, Plan, Target};
use lily_model::{DeviceError, Packing};

use crate::device::Watch;
use crate::driver::{Context, Event};
use crate::memory::{Block, Pinned, bytes_of};
use crate::pool::Pool;
use crate::upload::upload;

/// Inputs that may be on their way to the device at the same time, so that the host can be so many runs ahead.
const IN_FLIGHT: usize = 4;

/// How tokens are chosen, and what was.
pub(crate) struct Selection {
    pub(crate) requests: Block,
    pub(crate) counts: Block,
    bias: Block,
    mask: Block,
    pub(crate) chosen: Block,
}

/// Inputs on their way to the device.
struct Outbox {
    pinned: Pinned,
    sent: Event,
}

/// Blocks of the device's memory.
pub(crate) struct Buffers {
    context: Arc<Context>,
    layout: Layout,
    weights: Block,
    arena: Block,
    /// What launches of one kernel leave each other.
    pub(crate) scratch: Block,
    pub(crate) logits: Block,
    steps: [Block; 2],
    pub(crate) selection: Selection,
    outboxes: [Outbox; IN_FLIGHT],
    turn: usize,
}

impl Buffers {
    /// Loads the weights; everything else grows as plans need it.
    pub(crate) fn new(
        context: &Arc<Context>,
        target: Target<'_>,
        source: &dyn TensorSource,
        packing: &Packing,
        watch: Option<&Watch>,
    ) -> Result<Self, DeviceError> {
        let layout = Layout::new(target, source, packing, usize::MAX)
            .map_err(|e| DeviceError::Failed(e.to_string()))?;
        let weights = Block::new(context, "the weights", layout.bytes())?;
        upload(context, &layout, source, &weights, watch)?;
        let block = |what| Block::new(context, what, 0);
        let outbox = || {
            Ok::<_, DeviceError>(Outbox { pinned: Pinned::new(context, "inputs", 0)?, sent: Event::new()? })
        };
        Ok(Buffers {
            context: context.clone(),
            layout,
            weights,
            arena: block("activations")?,
            scratch: block("scratch")?,
            logits: block("logits")?,
            steps: [block("the input of a step")?, block("the input of a step")?],
            selection: Selection {
                requests: block("requests")?,
                counts: block("counts of tokens")?,
                bias: block("biases of tokens")?,
                mask: block("masks of tokens")?,
                chosen: block("chosen tokens")?,
            },
            outboxes: [outbox()?, outbox()?, outbox()?, outbox()?],
            turn: 0,
        })
    }

    /// Makes buffers as long as a plan needs them.
    pub(crate) fn reserve(
        &mut self,
        plan: &Plan,
        layout: StepLayout,
        vocab: usize,
    ) -> Result<(), DeviceError> {
        self.arena.reserve("activations", plan.arena_bytes)?;
        self.logits.reserve("logits", 4 * plan.logit_rows * vocab)?;
        self.steps.iter_mut().try_for_each(|step| step.reserve("the input of a step", layout.bytes()))
    }

    /// Enqueues the input of a step.
    pub(crate) fn send(
        &mut self,
        step: usize,
        layout: StepLayout,
        tokens: &[u32],
        positions: &[u32],
        slots: &[u32],
    ) -> Result<(), DeviceError> {
        self.turn = (self.turn + 1) % IN_FLIGHT;
        let Outbox { pinned, sent } = &mut self.outboxes[self.turn];
        sent.wait()?;
        pinned.reserve("inputs", layout.bytes())?;
        let bytes = pinned.bytes_mut();
        for (Range { start: at, .. }, words) in
            [(layout.tokens(), tokens), (layout.positions(), positions), (layout.slots(), slots)]
        {
            bytes[at..at + 4 * words.len()].copy_from_slice(bytes_of(words));
        }
        self.steps[step].write_from(0, pinned, layout.bytes())?;
        Ok(sent.record(self.context.stream())?)
    }

    /// Copies how tokens are chosen; no step is under way.
    pub(crate) fn choose(&mut self, choices: &Choices, vocab: usize) -> Result<(), DeviceError> {
        let requests: Vec<u32> = choices.requests.iter().flat_map(Request::words).collect();
        let s = &mut self.selection;
        s.requests.reserve("requests", 4 * requests.len())?;
        s.chosen.reserve("chosen tokens", 4 * choices.requests.len())?;
        let words = vocab.div_ceil(32);
        for (what, pool, row) in [
            ("counts of tokens", &mut s.counts, vocab),
            ("biases of tokens", &mut s.bias, vocab),
            ("masks of tokens", &mut s.mask, words),
        ] {
            pool.reserve(what, 4 * choices.entries * row)?;
        }
        s.requests.write(0, bytes_of(&requests))?;
        for Fresh { entry, counts, bias, mask } in &choices.fresh {
            let bias: Option<Vec<u32>> = bias.as_ref().map(|b| b.iter().map(|x| x.to_bits()).collect());
            for (pool, new, row) in
                [(&s.counts, counts, vocab), (&s.bias, &bias, vocab), (&s.mask, mask, words)]
            {
                if let Some(new) = new {
                    pool.write(4 * entry * row, bytes_of(new))?;
                }
            }
        }
        Ok(())
    }

    /// Where everything is that may move.
    pub(crate) fn addresses(&self, sequences: &Sequences<Pool>, layers: usize) -> Vec<u64> {
        let s = &self.selection;
        let [one, other] = &self.steps;
        let own = [
            &self.arena,
            &self.scratch,
            &self.logits,
            one,
            other,
            &s.requests,
            &s.counts,
            &s.bias,
            &s.mask,
            &s.chosen,
        ];
        let pools = (0..layers).filter_map(|layer| sequences.layer(layer)).flat_map(|l| l.both());
        // A pool that has grown at the same place is longer.
        let pools = pools.flat_map(|pool| [pool.block().start(), pool.block().len() as u64]);
        own.into_iter().map(Block::start).chain(pools).collect()
    }
}

/// What the bindings of a plan are resolved against.
pub(crate) struct Bound<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) sequences: &'a Sequences<Pool>,
    pub(crate) layout: StepLayout,
    /// Which of the two steps the plan reads.
    pub(crate) step: usize,
}

impl device::Memory for Bound<'_> {
    type Address = u64;

    fn buffer(&self, buffer: Buffer) -> Option<(u64, usize)> {
        let Bound { buffers, layout, step, .. } = self;
        let whole = |block: &Block| Some((block.start(), block.len()));
        let part =
            |block: &Block, range: Range<usize>| Some((block.start() + range.start as u64, range.len()));
        let (now, next) = (&buffers.steps[*step], &buffers.steps[1 - *step]);
        match buffer {
            Buffer::Tensor(id) => {
                let spot = buffers.layout.place(id)?;
                part(&buffers.weights, spot.start..spot.start + spot.bytes)
            }
            Buffer::Arena => whole(&buffers.arena),
            Buffer::Logits => whole(&buffers.logits),
            Buffer::Tokens => part(now, layout.tokens()),
            Buffer::Positions => part(now, layout.positions()),
            Buffer::Slots => part(now, layout.slots()),
            Buffer::NextTokens => part(next, layout.tokens()),
            Buffer::NextPositions => part(next, layout.positions()),
            Buffer::NextSlots => part(next, layout.slots()),
            Buffer::Requests => whole(&buffers.selection.requests),
            Buffer::Counts => whole(&buffers.selection.counts),
            Buffer::Bias => whole(&buffers.selection.bias),
            Buffer::Mask => whole(&buffers.selection.mask),
            Buffer::Chosen => whole(&buffers.selection.chosen),
            Buffer::Keys { layer, .. }
            | Buffer::Values { layer, .. }
            | Buffer::DeltaState { layer, .. }
            | Buffer::ConvState { layer, .. } => whole(self.sequences.layer(layer)?.pool(buffer)?.block()),
        }
    }

    fn offset(start: u64, bytes: usize) -> u64 {
        start + bytes as u64
    }
}
