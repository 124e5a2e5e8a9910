//! How the input of a step lies in one buffer of a GPU.

use std::ops::Range;

use lily_kernels::SLOT_WORDS;
use lily_kernels::attention::PAGE_TOKENS;

use crate::plan::Plan;

/// As plans align regions.
const ALIGN: usize = 256;

/// Token ids, positions, and the table of sequences of a step, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    positions: usize,
    slots: usize,
    bytes: usize,
}

impl StepLayout {
    /// Of a step of this plan.
    pub fn of(plan: &Plan) -> Self {
        let rows = 4 * plan.slots * plan.rows;
        let positions = rows.next_multiple_of(ALIGN);
        let slots = (positions + rows).next_multiple_of(ALIGN);
        let table = SLOT_WORDS + plan.context.div_ceil(PAGE_TOKENS);
        StepLayout { positions, slots, bytes: slots + 4 * plan.slots * table }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where token ids are.
    pub fn tokens(&self) -> Range<usize> {
        0..self.positions
    }

    /// Where positions are.
    pub fn positions(&self) -> Range<usize> {
        self.positions..self.slots
    }

    /// Where the table of sequences is.
    pub fn slots(&self) -> Range<usize> {
        self.slots..self.bytes
    }
}
