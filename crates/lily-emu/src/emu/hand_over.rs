//! Steps that choose their tokens on the device and hand them to the next step.

use std::collections::VecDeque;

use lily_kernels::SLOT_WORDS;
use lily_kernels::select::Request;
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
    /// Of steps that ran and were not taken.
    taken_next: VecDeque<Vec<u32>>,
}

const WHAT: &str = "how tokens are chosen";

impl Selection {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let empty = || Block::new(WHAT, 0);
        Ok(Selection {
            requests: empty()?,
            counts: empty()?,
            bias: empty()?,
            mask: empty()?,
            chosen: empty()?,
            taken_next: VecDeque::new(),
        })
    }

    fn begin(&mut self, choices: &Choices, vocab: usize) -> Result<(), DeviceError> {
        let requests: Vec<u32> = choices.requests.iter().flat_map(Request::words).collect();
        self.requests = Block::of_u32(WHAT, &requests)?;
        self.chosen = Block::new(WHAT, 4 * choices.requests.len())?;
        self.taken_next.clear();
        let words = vocab.div_ceil(32);
        for (pool, row) in [(&mut self.counts, vocab), (&mut self.bias, vocab), (&mut self.mask, words)] {
            pool.grow(WHAT, 4 * choices.entries * row)?;
        }
        for fresh in &choices.fresh {
            let bias: Option<Vec<u32>> =
                fresh.bias.as_ref().map(|bias| bias.iter().map(|b| b.to_bits()).collect());
            for (pool, new, row) in [
                (&mut self.counts, &fresh.counts, vocab),
                (&mut self.bias, &bias, vocab),
                (&mut self.mask, &fresh.mask, words),
            ] {
                if let Some(new) = new {
                    pool.write_u32_at(fresh.entry * row, new);
                }
            }
        }
        Ok(())
    }
}

impl EmuDevice {
    pub(super) fn begin(
        &mut self,
        plan: &Plan,
        batch: &Batch<'_>,
        choices: &Choices,
    ) -> Result<(), DeviceError> {
        choices.check(plan, batch, self.geometry.vocab)?;
        let rows = plan.slots;
        self.prepare(plan, batch)?;
        self.selection.begin(choices, self.geometry.vocab)?;
        let mut slots = self.state.slots(batch.sequences, plan.context)?;
        // The next step reads what this one writes, and the other way round.
        (0..rows).for_each(|row| slots.swap(row * SLOT_WORDS, row * SLOT_WORDS + 1));
        let unknown = vec![u32::MAX; rows];
        self.steps[1].fill(&unknown, &unknown, &slots)
    }

    /// Runs a step now: it is under way until it is taken.
    pub(super) fn submit(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        let ready = self.ready(plan)?;
        self.run_stages(plan, &ready)?;
        let chosen = self.selection.chosen.read_u32(plan.slots);
        self.selection.taken_next.push_back(chosen);
        self.steps.swap(0, 1);
        Ok(())
    }

    pub(super) fn taken(&mut self) -> Result<Vec<u32>, DeviceError> {
        let none = || DeviceError::Unknown("no step is under way".into());
        self.selection.taken_next.pop_front().ok_or_else(none)
    }

    /// Takes the last step of a sequence back: its recurrent state is again what it was before, as if the token had never
    /// been run. Only one step can be, and what it wrote into pages lies behind the sequence's end.
    pub fn take_back(&mut self, sequence: SequenceId) -> Result<(), DeviceError> {
        self.state.flip(sequence)
    }
}
