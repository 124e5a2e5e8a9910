//! Keys or values into the cache.

use crate::{Activation, Contract, Operand, Traffic};

/// Writes x[slot * rows + r] to the cache of the slot's sequence at the row's position. Launched for keys and for values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheWrite {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Heads of a row.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of cache: an upper bound of every position + 1.
    pub context: usize,
}

impl CacheWrite {
    /// x act `[slots * rows, kv_heads, head_dim]`; positions u32 `[slots * rows]`; a slot's cache act [context, kv_heads,
    /// head_dim], of which the rows at `positions` are written.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("positions").u32(),
        Operand::update("cache").act().per_slot(),
    ];

    /// One row and many, one sequence and several, around a page.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, kv_heads, head_dim, context| CacheWrite {
            slots,
            rows,
            kv_heads,
            head_dim,
            context,
        };
        vec![
            case(1, 1, 2, 256, 300),
            case(3, 2, 3, 33, 65),
            case(1, 70, 1, 16, 200_000),
            case(2, 1, 2, 64, 64),
        ]
    }
}

impl Contract for CacheWrite {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let n = self.slots * self.rows;
        let x = activation.bytes() * n * self.kv_heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(4 * n), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        0
    }
}
