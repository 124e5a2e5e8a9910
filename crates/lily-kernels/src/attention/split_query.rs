//! The queries out of the joint projection of queries and gates.

use crate::{Activation, Contract, Operand, Traffic};

/// q[r, i] = the first half of head i of qg[r].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitQuery {
    /// Rows.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl SplitQuery {
    /// qg act `[rows, heads, 2, head_dim]`; q act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] = &[Operand::read("qg").act(), Operand::write("q").act()];

    /// Widths that fill no vector, and more than one threadgroup.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, head_dim| SplitQuery { rows, heads, head_dim };
        vec![case(1, 16, 256), case(3, 3, 33), case(7, 4, 64), case(1, 1, 5)]
    }
}

impl Contract for SplitQuery {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let q = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(q), Traffic::written(q)]
    }

    fn flops(&self) -> u64 {
        0
    }
}
