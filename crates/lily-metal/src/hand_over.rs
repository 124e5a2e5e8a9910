//! Steps that choose their tokens on the device and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_model::device::{Batch, Choices, STEPS_UNDER_WAY, StepLayout};
use lily_model::plan::Plan;
use lily_model::{DeviceError, SequenceId};

use crate::buffers::words_of;
use crate::device::{MetalDevice, owners};
use crate::gpu::{Block, Commands, Gpu};

/// Steps that were submitted and not taken.
#[derive(Default)]
pub(crate) struct Underway {
    sequences: Vec<SequenceId>,
    /// Of each, by turn, the submission to wait for.
    serials: [u64; STEPS_UNDER_WAY],
}

impl<G: Gpu> MetalDevice<G> {
    pub(crate) fn begin(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &Choices,
    ) -> Result<(), DeviceError> {
        choices.check(plan, batch, self.geometry.vocab)?;
        self.check(plan, batch)?;
        let (rows, layout, owners) = (plan.slots, StepLayout::of(plan), owners(batch.sequences));
        let mut slots = self.sequences.slots(batch.sequences, plan.context)?;
        // Both inputs and everything that says how tokens are chosen are written here.
        self.queue.wait()?;
        self.queue.check(&owners)?;
        self.buffers.choose(choices, self.geometry.vocab)?;
        self.prepare(plan)?;
        self.buffers.send(0, layout, batch.tokens, batch.positions, &slots)?;
        // The next step reads what this one writes, and the other way round.
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.buffers.send(1, layout, &unknown, &unknown, &slots)?;
        self.under_way.sequences = batch.sequences.to_vec();
        Ok(())
    }

    pub(crate) fn submit(&mut self, plan: &Plan, step: usize) -> Result<(), DeviceError> {
        let (rows, owners) = (plan.slots, owners(&self.under_way.sequences));
        self.prepare(plan)?;
        self.queue.begin(&owners)?;
        let written = self.write_down(plan, step % 2).and_then(|_| {
            let s = &self.buffers.selection;
            self.queue.move_bytes("chosen tokens", |commands| {
                let (chosen, history) = (s.chosen.buffer(), s.history[step % STEPS_UNDER_WAY].buffer());
                commands.copy(chosen, 0..4 * rows, history, 0);
            })?;
            self.queue.submit()
        });
        let serial = written.inspect_err(|error| self.queue.abandon(error))?;
        self.used(step % 2, serial);
        self.used(1 - step % 2, serial);
        self.under_way.serials[step % STEPS_UNDER_WAY] = serial;
        Ok(())
    }

    pub(crate) fn taken(&mut self, plan: &Plan, step: usize) -> Result<Vec<u32>, DeviceError> {
        let (rows, at) = (plan.slots, step % STEPS_UNDER_WAY);
        self.queue.wait_for(self.under_way.serials[at])?;
        self.queue.check(&owners(&self.under_way.sequences))?;
        let mut bytes = vec![0; 4 * rows];
        self.buffers.selection.history[at].buffer().read(0, &mut bytes);
        Ok(words_of(&bytes))
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.sequences.flip(sequence)
    }
}
