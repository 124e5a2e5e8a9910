//! Pools of recurrent states for cases of GPUs.

use crate::random::Random;

/// Where the states of a launch's sequences stand in their pool: in any order, with entries of nobody between them.
pub(super) struct Pool {
    /// The table of sequences, as [`crate::testing::CaseBuilder::slots`] takes it.
    pub(super) table: Vec<(u32, u32, Vec<u32>, bool)>,
    entries: usize,
}

impl Pool {
    /// For so many sequences. Two of them keep each state in one place, if `one_place` allows that, and one or three in two; of
    /// three the second is done.
    pub(super) fn new(slots: usize, one_place: bool, random: &mut Random) -> Self {
        let entries = 2 * slots + 1;
        let mut places: Vec<u32> = (0..entries as u32).collect();
        for i in (1..entries).rev() {
            places.swap(i, random.below(i + 1));
        }
        let entry = |slot: usize| {
            let (state, other) = (places[2 * slot], places[2 * slot + 1]);
            let next = if one_place && slots == 2 { state } else { other };
            (state, next, Vec::new(), slots == 3 && slot == 1)
        };
        Pool { table: (0..slots).map(entry).collect(), entries }
    }

    /// Whether a sequence is done.
    pub(super) fn done(&self, slot: usize) -> bool {
        self.table[slot].3
    }

    /// Whether every state moves to another place.
    pub(super) fn moves(&self) -> bool {
        self.table.iter().all(|(state, next, _, done)| state != next && !done)
    }

    /// The pool before a launch: NaN where no sequence has its state.
    pub(super) fn before(&self, states: &[Vec<f32>]) -> Vec<f32> {
        let len = states[0].len();
        let mut pool = vec![f32::NAN; self.entries * len];
        for ((state, ..), values) in self.table.iter().zip(states) {
            pool[*state as usize * len..][..len].copy_from_slice(values);
        }
        pool
    }

    /// The pool after it: NaN where nothing may be written.
    pub(super) fn after(&self, states: &[Vec<f64>]) -> Vec<f64> {
        let len = states[0].len();
        let mut pool = vec![f64::NAN; self.entries * len];
        for ((_, next, _, done), values) in self.table.iter().zip(states) {
            if !done {
                pool[*next as usize * len..][..len].copy_from_slice(values);
            }
        }
        pool
    }
}
