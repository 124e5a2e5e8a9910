//! Steps that choose their tokens on the device and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_kernels::select::NOT_FINITE;
use lily_model::device::{Batch, Choices, StepLayout, moves};
use lily_model::plan::Plan;
use lily_model::{DeviceError, SequenceId};

use crate::device::CudaDevice;
use crate::memory::Pinned;

impl CudaDevice {
    /// Runs `count` steps of a plan that chooses tokens. Each hands its tokens to the next one on the device, which is told
    /// nothing in between. Returns what each step chose, `[count][slots]`; a sequence behind its end token stays as it is.
    /// There must be room for all tokens.
    pub fn hand_over(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &mut Choices,
        count: usize,
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        self.guard(|device| device.hand_tokens_over(plan, batch, choices, count))
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.sequences.flip(sequence)
    }

    fn hand_tokens_over(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &mut Choices,
        count: usize,
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        choices.check(plan, batch, self.geometry.vocab, count)?;
        self.check(plan, batch)?;
        let (rows, layout) = (plan.slots, StepLayout::of(plan));
        let mut slots = self.sequences.slots(batch.sequences, plan.context)?;
        self.buffers.choose(choices)?;
        [0, 1].into_iter().try_for_each(|step| self.prepare(plan, step).map(|_| ()))?;
        self.buffers.send(0, layout, batch.tokens, batch.positions, &slots)?;
        // The next step reads what this one writes, and the other way round.
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.buffers.send(1, layout, &unknown, &unknown, &slots)?;
        let mut pinned = Pinned::new(&self.context, "chosen tokens on the host", 4 * rows * count)?;
        let mut moves_states = false;
        for step in 0..count {
            moves_states = self.enqueue(plan, step % 2)?;
            self.buffers.selection.chosen.read_into(0..4 * rows, &mut pinned, 4 * rows * step)?;
        }
        self.context.wait()?;
        let chosen: Vec<Vec<u32>> = pinned.words(rows * count).chunks(rows).map(<[u32]>::to_vec).collect();
        for (row, id) in batch.sequences.iter().enumerate().filter(|_| moves_states) {
            let ends = &choices.requests[row].end_tokens;
            for _ in 0..moves(chosen.iter().map(|step| step[row]), ends) {
                self.sequences.flip(*id)?;
            }
        }
        let mut counts = vec![0u8; 4 * choices.counts.len()];
        self.buffers.selection.counts.read(0, &mut counts)?;
        choices.counts = counts.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        for (row, request) in choices.requests.iter_mut().enumerate() {
            request.step += chosen.iter().filter(|step| step[row] < NOT_FINITE).count() as u32;
        }
        Ok(chosen)
    }
}
