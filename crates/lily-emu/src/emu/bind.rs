//! From a plan's bindings to memory: the one place that knows where the device keeps each buffer.

use std::collections::HashMap;

use lily_model::device::{self, Sequences};
use lily_model::plan::Buffer;
use lily_model::{DeviceError, TensorId};

use super::hand_over::Selection;
use super::memory::{Block, Pool};

/// Where an operand is.
pub(crate) type Place = device::Place<*mut u8>;

/// The input of a step.
pub(crate) struct Step {
    pub(crate) tokens: Block,
    pub(crate) positions: Block,
    pub(crate) slots: Block,
}

impl Step {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let empty = |what| Block::new(what, 0);
        Ok(Step {
            tokens: empty("token ids")?,
            positions: empty("positions")?,
            slots: empty("the table of sequences")?,
        })
    }

    pub(crate) fn fill(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        slots: &[u32],
    ) -> Result<(), DeviceError> {
        self.tokens = Block::of_u32("token ids", tokens)?;
        self.positions = Block::of_u32("positions", positions)?;
        self.slots = Block::of_u32("the table of sequences", slots)?;
        Ok(())
    }
}

/// What bindings are resolved against.
pub(crate) struct Memory<'a> {
    pub(crate) tensors: &'a HashMap<TensorId, Block>,
    pub(crate) arena: &'a Block,
    pub(crate) logits: &'a Block,
    pub(crate) step: &'a Step,
    pub(crate) next: &'a Step,
    pub(crate) selection: &'a Selection,
    pub(crate) state: &'a Sequences<Pool>,
}

impl device::Memory for Memory<'_> {
    type Address = *mut u8;

    fn buffer(&self, buffer: Buffer) -> Option<(*mut u8, usize)> {
        let block = match buffer {
            Buffer::Tensor(id) => self.tensors.get(&id)?,
            Buffer::Arena => self.arena,
            Buffer::Logits => self.logits,
            Buffer::Tokens => &self.step.tokens,
            Buffer::Positions => &self.step.positions,
            Buffer::Slots => &self.step.slots,
            Buffer::NextTokens => &self.next.tokens,
            Buffer::NextPositions => &self.next.positions,
            Buffer::NextSlots => &self.next.slots,
            Buffer::Requests => &self.selection.requests,
            Buffer::Counts => &self.selection.counts,
            Buffer::Bias => &self.selection.bias,
            Buffer::Mask => &self.selection.mask,
            Buffer::Chosen => &self.selection.chosen,
            Buffer::Keys { layer, .. }
            | Buffer::Values { layer, .. }
            | Buffer::DeltaState { layer, .. }
            | Buffer::ConvState { layer, .. } => self.state.layer(layer)?.pool(buffer)?.block(),
        };
        Some((block.at(&(0..block.len())), block.len()))
    }

    fn offset(start: *mut u8, bytes: usize) -> *mut u8 {
        start.wrapping_add(bytes)
    }
}
