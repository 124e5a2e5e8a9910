//! Steps that choose their tokens on the device and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_kernels::select::NOT_FINITE;
use lily_model::device::{Batch, Choices, StepLayout, moves};
use lily_model::plan::Plan;
use lily_model::{DeviceError, SequenceId};

use crate::buffers::words_of;
use crate::device::{MetalDevice, owners};
use crate::gpu::{Block, Commands, Gpu};

impl<G: Gpu> MetalDevice<G> {
    /// Runs `count` steps of a plan that chooses tokens. Each hands its tokens to the next one on the device, which is told
    /// nothing in between: while one runs, the next waits for it. Returns what each step chose, `[count][slots]`; a sequence behind
    /// its end token stays as it is. There must be room for all tokens.
    pub fn hand_over(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &mut Choices,
        count: usize,
    ) -> Result<Vec<Vec<u32>>, DeviceError> {
        choices.check(plan, batch, self.geometry.vocab, count)?;
        self.check(plan, batch)?;
        let (rows, layout, owners) = (plan.slots, StepLayout::of(plan), owners(batch.sequences));
        let mut slots = self.sequences.slots(batch.sequences, plan.context)?;
        // Both inputs and everything that says how tokens are chosen are written here.
        self.queue.wait()?;
        self.queue.check(&owners)?;
        self.buffers.choose(choices, count)?;
        self.prepare(plan)?;
        self.buffers.send(0, layout, batch.tokens, batch.positions, &slots)?;
        // The next step reads what this one writes, and the other way round.
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.buffers.send(1, layout, &unknown, &unknown, &slots)?;
        let mut moves_states = false;
        for step in 0..count {
            self.queue.begin(&owners)?;
            let written = self.write_down(plan, step % 2).and_then(|moves| {
                let s = &self.buffers.selection;
                self.queue.move_bytes("chosen tokens", |commands| {
                    let (chosen, history) = (s.chosen.buffer(), s.history.buffer());
                    commands.copy(chosen, 0..4 * rows, history, 4 * rows * step);
                })?;
                moves_states = moves;
                self.queue.submit()
            });
            let serial = written.inspect_err(|error| self.queue.abandon(error))?;
            self.used(step % 2, serial);
            self.used(1 - step % 2, serial);
        }
        self.queue.wait()?;
        self.queue.check(&owners)?;
        let mut bytes = vec![0; 4 * rows * count];
        self.buffers.selection.history.buffer().read(0, &mut bytes);
        let chosen: Vec<Vec<u32>> = words_of(&bytes).chunks(rows).map(<[u32]>::to_vec).collect();
        for (row, id) in batch.sequences.iter().enumerate().filter(|_| moves_states) {
            let ends = &choices.requests[row].end_tokens;
            for _ in 0..moves(chosen.iter().map(|step| step[row]), ends) {
                self.sequences.flip(*id)?;
            }
        }
        let mut counts = vec![0; 4 * choices.counts.len()];
        self.buffers.selection.counts.buffer().read(0, &mut counts);
        choices.counts = words_of(&counts);
        for (row, request) in choices.requests.iter_mut().enumerate() {
            request.step += chosen.iter().filter(|step| step[row] < NOT_FINITE).count() as u32;
        }
        Ok(chosen)
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.sequences.flip(sequence)
    }
}
