//! From a plan's bindings to memory: the one place that knows where a device keeps each buffer.

use std::collections::HashMap;

use lily_kernels::{Element, Operand, SLOTS, Text};
use lily_model::plan::{Buffer, Launch, View};
use lily_model::{DeviceError, TensorId};

use super::hand_over::Selection;
use super::memory::{Block, Pool};
use super::state::{Layer, State};

/// Where an operand is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) start: *mut u8,
    /// Bytes from there on that belong to it; of a pool, all.
    pub(crate) bytes: usize,
}

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
    pub(crate) state: &'a State,
}

impl Memory<'_> {
    /// The place of each operand of a launch.
    pub(crate) fn operands(&self, launch: &Launch) -> Result<Vec<Place>, DeviceError> {
        let mut bindings = launch.bindings.iter();
        let operands = launch.kernel.operands().iter();
        operands.map(|operand| self.operand(launch, operand, &mut bindings)).collect()
    }

    fn operand<'v>(
        &self,
        launch: &Launch,
        operand: &Operand,
        bindings: &mut impl Iterator<Item = &'v View>,
    ) -> Result<Place, DeviceError> {
        let wrong = |what: &str| {
            DeviceError::Failed(format!(
                "operand {} of {} ({}) {what}",
                operand.name,
                launch.label,
                launch.kernel.name()
            ))
        };
        if operand.per_slot {
            let views: Vec<&View> = bindings.take(launch.kernel.slots()).collect();
            return self.pool(&views, operand.element).ok_or_else(|| wrong("is bound to no pool"));
        }
        let view = bindings.next().ok_or_else(|| wrong("is not bound"))?;
        let block = match view.buffer {
            Buffer::Tensor(id) => self.tensors.get(&id),
            Buffer::Arena => Some(self.arena),
            Buffer::Logits => Some(self.logits),
            Buffer::Tokens => Some(&self.step.tokens),
            Buffer::Positions => Some(&self.step.positions),
            Buffer::Slots => Some(&self.step.slots),
            Buffer::NextTokens => Some(&self.next.tokens),
            Buffer::NextPositions => Some(&self.next.positions),
            Buffer::NextSlots => Some(&self.next.slots),
            Buffer::Requests => Some(&self.selection.requests),
            Buffer::Counts => Some(&self.selection.counts),
            Buffer::Bias => Some(&self.selection.bias),
            Buffer::Mask => Some(&self.selection.mask),
            Buffer::Chosen => Some(&self.selection.chosen),
            Buffer::Keys { .. }
            | Buffer::Values { .. }
            | Buffer::DeltaState { .. }
            | Buffer::ConvState { .. } => None,
        };
        let block = block.filter(|block| view.bytes.end <= block.len());
        let block = block.ok_or_else(|| wrong(&format!("has no such bytes: {view:?}")))?;
        Ok(Place { start: block.at(&view.bytes), bytes: view.bytes.len() })
    }

    /// The pool of a per-slot operand. Its bindings name the slots in order, in one layer.
    fn pool(&self, views: &[&View], element: Element) -> Option<Place> {
        let mut found = None;
        for (n, view) in views.iter().enumerate() {
            let (slot, pool) = self.pool_of(view.buffer, element)?;
            let place = pool.whole();
            if slot != n || found.is_some_and(|other| other != place) {
                return None;
            }
            found = Some(place);
        }
        found.map(|(start, bytes)| Place { start, bytes })
    }

    fn pool_of(&self, buffer: Buffer, element: Element) -> Option<(usize, &Pool)> {
        let layer = |n| self.state.layer(n);
        let (slot, pool, holds) = match buffer {
            Buffer::DeltaState { slot, layer: n } => match layer(n)? {
                Layer::Delta { state, .. } => (slot, state, Element::F32),
                Layer::Attention { .. } => return None,
            },
            Buffer::ConvState { slot, layer: n } => match layer(n)? {
                Layer::Delta { conv, .. } => (slot, conv, Element::F32),
                Layer::Attention { .. } => return None,
            },
            Buffer::Keys { slot, layer: n } => match layer(n)? {
                Layer::Attention { keys, .. } => (slot, keys, Element::Activation),
                Layer::Delta { .. } => return None,
            },
            Buffer::Values { slot, layer: n } => match layer(n)? {
                Layer::Attention { values, .. } => (slot, values, Element::Activation),
                Layer::Delta { .. } => return None,
            },
            _ => return None,
        };
        (holds == element).then_some((slot, pool))
    }

    /// The buffers of a text by number; those that it passes by value are null.
    pub(crate) fn buffers(
        &self,
        text: &Text,
        operands: &[Operand],
        places: &[Place],
    ) -> Result<Vec<*mut u8>, DeviceError> {
        let mut buffers = vec![std::ptr::null_mut(); text.buffers()];
        for (operand, place) in operands.iter().zip(places) {
            let missing = || DeviceError::Failed(format!("{} has no buffer {}", text.path, operand.name));
            buffers[text.buffer(operand.name).ok_or_else(missing)?] = place.start;
        }
        if let Some(n) = text.buffer(SLOTS) {
            let slots = &self.step.slots;
            buffers[n] = slots.at(&(0..slots.len()));
        }
        Ok(buffers)
    }
}
