//! How the tokens of steps that hand them over are chosen.

use lily_kernels::select::{NOT_FINITE, Request};

use crate::DeviceError;
use crate::device::Batch;
use crate::plan::{Plan, Tail};

/// How the next tokens of a decode step are chosen (`lily_kernels::select`).
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// One for each row; `step` moves on.
    pub requests: Vec<Request>,
    /// `[entries, vocab]`; moves on.
    pub counts: Vec<u32>,
    /// `[entries, vocab]`.
    pub bias: Vec<f32>,
    /// `[entries, ceil(vocab / 32)]`.
    pub mask: Vec<u32>,
}

impl Choices {
    /// Whether `count` steps of this plan can choose so: each hands a token of each sequence to the next one.
    pub fn check(
        &self,
        plan: &Plan,
        batch: &Batch<'_>,
        vocab: usize,
        count: usize,
    ) -> Result<(), DeviceError> {
        let wrong = |what: &str| Err(DeviceError::Unknown(what.into()));
        let (rows, entries) = match plan.tail {
            Tail::Select { entries } if plan.rows == 1 => (plan.slots, entries),
            _ => return wrong("the plan does not choose a token for each sequence"),
        };
        let known = |r: &Request| (r.entry as usize) < entries && r.vocabulary as usize <= vocab;
        let fits = self.requests.len() == rows
            && self.requests.iter().all(known)
            && self.counts.len() == entries * vocab
            && self.bias.len() == entries * vocab
            && self.mask.len() == entries * vocab.div_ceil(32)
            && batch.positions.iter().all(|p| *p as usize + count <= plan.context);
        if fits { Ok(()) } else { wrong("requests or positions do not fit the plan") }
    }
}

/// How many steps moved the state of a row that chose these tokens: all up to the one behind which it was done.
pub fn moves(chosen: impl Iterator<Item = u32>, ends: &[u32]) -> usize {
    let mut moves = 0;
    for token in chosen {
        moves += 1;
        if token >= NOT_FINITE || ends.contains(&token) {
            break;
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use lily_kernels::select::NONE_LEFT;

    use super::*;

    #[test]
    fn a_row_that_is_done_does_not_move() {
        let moved = |chosen: &[u32], ends: &[u32]| moves(chosen.iter().copied(), ends);
        assert_eq!(moved(&[5, 6, 7], &[]), 3);
        assert_eq!(moved(&[5, 6, NONE_LEFT, NONE_LEFT], &[6]), 2);
        assert_eq!(moved(&[5, NONE_LEFT, NONE_LEFT], &[]), 2);
        assert_eq!(moved(&[NOT_FINITE, NONE_LEFT], &[]), 1);
        assert_eq!(moved(&[], &[]), 0);
    }
}
