//! The second half of attention over a long context: blocks of keys together.

use super::AttentionShape;
use crate::{Activation, Contract, Operand, Traffic};

/// Merges a row's blocks ([`super::AttendBlocks`], [`super::AttendStepBlocks`]) in their order, and multiplies by the sigmoid
/// of the gate, the second half of each head of `qg`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendCombine {
    /// Sizes.
    pub shape: AttentionShape,
    /// Keys of a block.
    pub block: usize,
}

impl AttendCombine {
    /// partial f32 `[n, query_heads, blocks, head_dim + 2]`; qg act `[n, query_heads, 2, head_dim]`; positions u32 `[n]`; out act
    /// `[n, query_heads, head_dim]`. n = slots * rows, blocks = ceil(context / block).
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("partial"),
        Operand::read("qg").act(),
        Operand::read("positions").u32(),
        Operand::write("out").act(),
    ];

    /// One block and several, ragged and whole.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, block| AttendCombine {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            block,
        };
        vec![case(1, 1, 16, 2, 256, 200, 64), case(2, 3, 6, 2, 40, 150, 128)]
    }
}

impl Contract for AttendCombine {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let q = size * s.queries();
        vec![
            Traffic::read(4 * s.partial(self.block)),
            Traffic::read(q),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
        ]
    }

    fn flops(&self) -> u64 {
        2 * self.shape.partial(self.block) as u64
    }
}
