//! Steps that choose their tokens on the device and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_model::device::{Batch, Choices, STEPS_UNDER_WAY, StepLayout};
use lily_model::plan::Plan;
use lily_model::{DeviceError, SequenceId};

use crate::device::CudaDevice;
use crate::driver::{Context, Event};
use crate::memory::Pinned;

/// What a step chose, on its way to the host.
pub(crate) struct Inbox {
    pinned: Pinned,
    arrived: Event,
}

impl Inbox {
    pub(crate) fn new(context: &std::sync::Arc<Context>) -> Result<Self, DeviceError> {
        Ok(Inbox { pinned: Pinned::new(context, "chosen tokens on the host", 0)?, arrived: Event::new()? })
    }
}

impl CudaDevice {
    pub(crate) fn begin(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &Choices,
    ) -> Result<(), DeviceError> {
        choices.check(plan, batch, self.geometry.vocab)?;
        self.check(plan, batch)?;
        let (rows, layout) = (plan.slots, StepLayout::of(plan));
        let mut slots = self.sequences.slots(batch.sequences, plan.context)?;
        self.buffers.choose(choices, self.geometry.vocab)?;
        for inbox in &mut self.inboxes {
            inbox.pinned.reserve("chosen tokens on the host", 4 * rows)?;
        }
        [0, 1].into_iter().try_for_each(|step| self.prepare(plan, step).map(|_| ()))?;
        self.buffers.send(0, layout, batch.tokens, batch.positions, &slots)?;
        // The next step reads what this one writes, and the other way round.
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.buffers.send(1, layout, &unknown, &unknown, &slots)
    }

    pub(crate) fn submit(&mut self, plan: &Plan, step: usize) -> Result<(), DeviceError> {
        self.enqueue(plan, step % 2)?;
        // The step that used this one before was taken.
        let Inbox { pinned, arrived } = &mut self.inboxes[step % STEPS_UNDER_WAY];
        self.buffers.selection.chosen.read_into(0..4 * plan.slots, pinned, 0)?;
        Ok(arrived.record(self.context.stream())?)
    }

    pub(crate) fn taken(&mut self, plan: &Plan, step: usize) -> Result<Vec<u32>, DeviceError> {
        let Inbox { pinned, arrived } = &self.inboxes[step % STEPS_UNDER_WAY];
        arrived.wait().map_err(|e| DeviceError::Failed(format!("in a decode plan: {e}")))?;
        Ok(pinned.words(plan.slots))
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.sequences.flip(sequence)
    }
}
