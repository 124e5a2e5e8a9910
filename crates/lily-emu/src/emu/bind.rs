//! From a plan's bindings to memory: the one place that knows where a device keeps each buffer.

use std::collections::HashMap;

use lily_kernels::{Element, Operand, SLOTS, Text};
use lily_model::plan::{Buffer, Launch, View};
use lily_model::{DeviceError, TensorId};

use super::memory::{Block, Pool};
use super::state::{Layer, State};

/// Where an operand is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) start: *mut u8,
    /// Bytes from there on that belong to it; of a pool, all.
    pub(crate) bytes: usize,
}

/// What bindings are resolved against.
pub(crate) struct Memory<'a> {
    pub(crate) tensors: &'a HashMap<TensorId, Block>,
    pub(crate) arena: &'a Block,
    pub(crate) logits: &'a Block,
    pub(crate) tokens: &'a Block,
    pub(crate) positions: &'a Block,
    pub(crate) slots: &'a Block,
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
            Buffer::Tokens => Some(self.tokens),
            Buffer::Positions => Some(self.positions),
            Buffer::Slots => Some(self.slots),
            Buffer::NextTokens
            | Buffer::NextPositions
            | Buffer::NextSlots
            | Buffer::Requests
            | Buffer::Counts
            | Buffer::Bias
            | Buffer::Mask
            | Buffer::Chosen
            | Buffer::Keys { .. }
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
            buffers[n] = self.slots.at(&(0..self.slots.len()));
        }
        Ok(buffers)
    }
}
