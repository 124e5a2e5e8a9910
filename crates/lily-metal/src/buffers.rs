//! Everything that plans bind but the states of sequences: weights, activations, logits, the inputs of two steps, and how tokens
//! are chosen.

use lily_kernels::select::Request;
use lily_model::DeviceError;
use lily_model::device::{self, Choices, Fresh, Layout, STEPS_UNDER_WAY, Sequences, StepLayout};
use lily_model::plan::{Buffer, Plan};

use crate::gpu::{Block, Gpu};
use crate::memory::Scratch;
use crate::pool::Pool;

/// Which buffer; the same for a plan as long as the device lives, wherever its memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// A block of weights.
    Weights(usize),
    Arena,
    Logits,
    /// The input of the step that runs, and of the one that it hands tokens to.
    Now,
    Next,
    Requests,
    Counts,
    Bias,
    Mask,
    Chosen,
    /// A pool of a layer: the first (S, keys) or the second (rows of the convolution, values).
    Pool {
        layer: usize,
        second: bool,
    },
}

/// A place in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) which: Which,
    pub(crate) offset: usize,
}

/// How tokens are chosen, and what was.
pub(crate) struct Selection<G: Gpu> {
    requests: Scratch<G>,
    counts: Scratch<G>,
    bias: Scratch<G>,
    mask: Scratch<G>,
    pub(crate) chosen: Scratch<G>,
    /// What each step under way chose, by turn: the host reads one while the GPU writes the other.
    pub(crate) history: [Scratch<G>; STEPS_UNDER_WAY],
}

/// Buffers of the device.
pub(crate) struct Buffers<G: Gpu> {
    layout: Layout,
    pub(crate) weights: Vec<G::Buffer>,
    arena: Scratch<G>,
    pub(crate) logits: Scratch<G>,
    steps: [Scratch<G>; 2],
    pub(crate) selection: Selection<G>,
}

impl<G: Gpu> Buffers<G> {
    /// Over weights that are there; everything else grows as plans need it.
    pub(crate) fn new(gpu: &G, layout: Layout, weights: Vec<G::Buffer>) -> Result<Self, DeviceError> {
        let scratch = |what| Scratch::new(gpu, what);
        Ok(Buffers {
            layout,
            weights,
            arena: scratch("activations")?,
            logits: scratch("logits")?,
            steps: [scratch("the input of a step")?, scratch("the input of a step")?],
            selection: Selection {
                requests: scratch("requests")?,
                counts: scratch("counts of tokens")?,
                bias: scratch("biases of tokens")?,
                mask: scratch("masks of tokens")?,
                chosen: scratch("chosen tokens")?,
                history: [scratch("chosen tokens")?, scratch("chosen tokens")?],
            },
        })
    }

    /// Makes buffers as long as a plan needs them.
    pub(crate) fn reserve(&mut self, plan: &Plan, vocab: usize) -> Result<(), DeviceError> {
        self.arena.reserve(plan.arena_bytes)?;
        self.logits.reserve(4 * plan.logit_rows * vocab)?;
        Ok(())
    }

    /// Writes the input of a step, which nothing that was submitted reads.
    pub(crate) fn send(
        &mut self,
        turn: usize,
        layout: StepLayout,
        tokens: &[u32],
        positions: &[u32],
        slots: &[u32],
    ) -> Result<(), DeviceError> {
        self.steps[turn].reserve(layout.bytes())?;
        let buffer = self.steps[turn].buffer();
        for (range, words) in
            [(layout.tokens(), tokens), (layout.positions(), positions), (layout.slots(), slots)]
        {
            buffer.write(range.start, &bytes_of(words));
        }
        Ok(())
    }

    /// Writes how tokens are chosen; nothing that was submitted reads it.
    pub(crate) fn choose(&mut self, choices: &Choices, vocab: usize) -> Result<(), DeviceError> {
        let requests: Vec<u32> = choices.requests.iter().flat_map(Request::words).collect();
        let s = &mut self.selection;
        s.requests.reserve(4 * requests.len())?;
        s.requests.buffer().write(0, &bytes_of(&requests));
        s.chosen.reserve(4 * choices.requests.len())?;
        for history in &mut s.history {
            history.reserve(4 * choices.requests.len())?;
        }
        let words = vocab.div_ceil(32);
        for (pool, row) in [(&mut s.counts, vocab), (&mut s.bias, vocab), (&mut s.mask, words)] {
            pool.reserve(4 * choices.entries * row)?;
        }
        for Fresh { entry, counts, bias, mask } in &choices.fresh {
            let bias: Option<Vec<u32>> = bias.as_ref().map(|b| b.iter().map(|x| x.to_bits()).collect());
            for (pool, new, row) in
                [(&s.counts, counts, vocab), (&s.bias, &bias, vocab), (&s.mask, mask, words)]
            {
                if let Some(new) = new {
                    pool.buffer().write(4 * entry * row, &bytes_of(new));
                }
            }
        }
        Ok(())
    }

    /// The memory of a buffer, for a step whose input is that of `turn`.
    pub(crate) fn find<'a>(
        &'a self,
        sequences: &'a Sequences<Pool<G>>,
        turn: usize,
        which: Which,
    ) -> Option<&'a G::Buffer> {
        let s = &self.selection;
        let scratch = match which {
            Which::Weights(block) => return self.weights.get(block),
            Which::Pool { layer, second } => {
                return Some(sequences.layer(layer)?.both()[usize::from(second)].buffer());
            }
            Which::Arena => &self.arena,
            Which::Logits => &self.logits,
            Which::Now => &self.steps[turn],
            Which::Next => &self.steps[1 - turn],
            Which::Requests => &s.requests,
            Which::Counts => &s.counts,
            Which::Bias => &s.bias,
            Which::Mask => &s.mask,
            Which::Chosen => &s.chosen,
        };
        Some(scratch.buffer())
    }
}

/// The bytes of words.
pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of bytes.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
}

/// What the bindings of a plan are resolved against.
pub(crate) struct Bound<'a, G: Gpu> {
    pub(crate) buffers: &'a Buffers<G>,
    pub(crate) sequences: &'a Sequences<Pool<G>>,
    pub(crate) layout: StepLayout,
}

impl<G: Gpu> device::Memory for Bound<'_, G> {
    type Address = At;

    fn buffer(&self, buffer: Buffer) -> Option<(At, usize)> {
        let layout = self.layout;
        let (which, range) = match buffer {
            Buffer::Tensor(id) => {
                let spot = self.buffers.layout.place(id)?;
                (Which::Weights(spot.block), spot.start..spot.start + spot.bytes)
            }
            Buffer::Tokens => (Which::Now, layout.tokens()),
            Buffer::Positions => (Which::Now, layout.positions()),
            Buffer::Slots => (Which::Now, layout.slots()),
            Buffer::NextTokens => (Which::Next, layout.tokens()),
            Buffer::NextPositions => (Which::Next, layout.positions()),
            Buffer::NextSlots => (Which::Next, layout.slots()),
            whole => {
                let which = match whole {
                    Buffer::Arena => Which::Arena,
                    Buffer::Logits => Which::Logits,
                    Buffer::Requests => Which::Requests,
                    Buffer::Counts => Which::Counts,
                    Buffer::Bias => Which::Bias,
                    Buffer::Mask => Which::Mask,
                    Buffer::Chosen => Which::Chosen,
                    Buffer::DeltaState { layer, .. } | Buffer::Keys { layer, .. } => {
                        self.sequences.layer(layer)?.pool(buffer)?;
                        Which::Pool { layer, second: false }
                    }
                    Buffer::ConvState { layer, .. } | Buffer::Values { layer, .. } => {
                        self.sequences.layer(layer)?.pool(buffer)?;
                        Which::Pool { layer, second: true }
                    }
                    _ => return None,
                };
                (which, 0..self.buffers.find(self.sequences, 0, which)?.len())
            }
        };
        Some((At { which, offset: range.start }, range.len()))
    }

    fn offset(start: At, bytes: usize) -> At {
        At { offset: start.offset + bytes, ..start }
    }
}
