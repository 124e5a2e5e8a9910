//! Steps that choose their tokens on the device and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_kernels::select::{NOT_FINITE, Request};
use lily_model::device::{Batch, Choices};
use lily_model::plan::Plan;
use lily_model::{DeviceError, SequenceId};

use super::device::EmuDevice;
use super::memory::Block;

/// How tokens are chosen, and what was.
pub(crate) struct Selection {
    pub(crate) requests: Block,
    pub(crate) counts: Block,
    pub(crate) bias: Block,
    pub(crate) mask: Block,
    pub(crate) chosen: Block,
}

impl Selection {
    pub(crate) fn new(choices: &Choices) -> Result<Self, DeviceError> {
        const WHAT: &str = "how tokens are chosen";
        let requests: Vec<u32> = choices.requests.iter().flat_map(Request::words).collect();
        let bias: Vec<u32> = choices.bias.iter().map(|b| b.to_bits()).collect();
        Ok(Selection {
            requests: Block::of_u32(WHAT, &requests)?,
            counts: Block::of_u32(WHAT, &choices.counts)?,
            bias: Block::of_u32(WHAT, &bias)?,
            mask: Block::of_u32(WHAT, &choices.mask)?,
            chosen: Block::new(WHAT, 4 * choices.requests.len())?,
        })
    }
}

impl EmuDevice {
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
        choices.check(plan, batch, self.geometry.vocab, count)?;
        let rows = plan.slots;
        let ready = self.ready(plan)?;
        self.prepare(plan, batch)?;
        self.selection = Selection::new(choices)?;
        let mut slots = self.state.slots(batch.sequences, plan.context)?;
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.steps[1].fill(&unknown, &unknown, &slots)?;
        let mut chosen = Vec::with_capacity(count);
        for _ in 0..count {
            let table = self.steps[0].slots.read_u32(rows * SLOT_WORDS);
            self.run_stages(plan, &ready)?;
            for (id, row) in batch.sequences.iter().zip(table.chunks(SLOT_WORDS)) {
                if ready.moves_states && row[3] == 0 {
                    self.state.flip(*id)?;
                }
            }
            chosen.push(self.selection.chosen.read_u32(rows));
            self.steps.swap(0, 1);
        }
        choices.counts = self.selection.counts.read_u32(choices.counts.len());
        for (row, request) in choices.requests.iter_mut().enumerate() {
            request.step += chosen.iter().filter(|step| step[row] < NOT_FINITE).count() as u32;
        }
        Ok(chosen)
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.state.flip(sequence)
    }
}
