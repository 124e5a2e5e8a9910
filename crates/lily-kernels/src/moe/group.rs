//! Rows by expert.

use crate::{Activation, Contract, Operand, Traffic};

/// A stable counting sort of the (row, slot) pairs by expert, so that each expert's rows stand together:
///
/// - `offsets[e] .. offsets[e + 1]` are expert e's places in `order`;
/// - `order` lists pair numbers, in rising order within an expert;
/// - `active[0]` is the number of experts with rows, `active[1 ..]` their ids in rising order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Rows.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses.
    pub top_k: usize,
}

/// What [`Group`] makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// `[experts + 1]`.
    pub offsets: Vec<u32>,
    /// `[rows * top_k]`.
    pub order: Vec<u32>,
    /// `[1 + max_active]`; entries beyond the active experts are not defined (0 here).
    pub active: Vec<u32>,
}

impl Group {
    /// ids u32 `[rows, top_k]`; offsets u32 `[experts + 1]`; order u32 `[rows * top_k]`; active u32 `[1 + max_active]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("ids").u32(),
        Operand::write("offsets").u32(),
        Operand::write("order").u32(),
        Operand::write("active").u32(),
    ];

    /// The most experts that can have rows.
    pub fn max_active(&self) -> usize {
        self.experts.min(self.rows * self.top_k)
    }

    /// The definition.
    pub fn reference(&self, ids: &[u32]) -> Grouping {
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.sort_by_key(|p| ids[*p as usize]);
        let below = |e: u32| ids.iter().filter(|i| **i < e).count() as u32;
        let offsets: Vec<u32> = (0..=self.experts as u32).map(below).collect();
        let mut active = vec![0];
        active.extend((0..self.experts as u32).filter(|e| ids.contains(e)));
        active[0] = active.len() as u32 - 1;
        active.resize(1 + self.max_active(), 0);
        Grouping { offsets, order, active }
    }

    /// More pairs than experts, and fewer; one expert.
    pub fn cases() -> Vec<Self> {
        let case = |rows, experts, top_k| Group { rows, experts, top_k };
        vec![case(1, 256, 8), case(100, 24, 8), case(5, 5, 5), case(7, 8, 1), case(3, 1, 1), case(64, 3, 2)]
    }
}

impl Contract for Group {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        let pairs = 4 * self.rows * self.top_k;
        vec![
            Traffic::read(pairs),
            Traffic::written(4 * (self.experts + 1)),
            Traffic::written(pairs),
            Traffic::written(4 * (1 + self.max_active())),
        ]
    }

    fn flops(&self) -> u64 {
        0
    }
}
