//! The first half of attention over a long context: blocks of keys apart.

use super::{AttentionShape, RowsOptions};
use crate::{Activation, Contract, Operand, Traffic};

/// For each row, query head and block of `block` keys that begins at or before the row's position, what
/// [`super::AttendCombine`] merges: the sum of values weighted by e^(score - m), the largest score m, the sum of the weights.
/// Scores and m are scaled by log2(e), so that all exponentials are powers of two.
///
/// Blocks behind a row's position are neither written nor read: traffic is declared as at position `context - 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendBlocks {
    /// Sizes.
    pub shape: AttentionShape,
    /// How.
    pub options: RowsOptions,
    /// Keys of a block: a multiple of [`super::PAGE_TOKENS`].
    pub block: usize,
}

impl AttendBlocks {
    /// q act `[n, query_heads, head_dim]`; positions u32 `[n]`; partial f32 `[n, query_heads, blocks, head_dim + 2]`, blocks =
    /// ceil(context / block); a slot's keys and values act `[context, kv_heads, head_dim]`. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("q").act(),
        Operand::read("positions").u32(),
        Operand::write("partial"),
        Operand::read("keys").act().per_slot(),
        Operand::read("values").act().per_slot(),
    ];

    /// One block and several, ragged and whole.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, pack, block| AttendBlocks {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            options: RowsOptions { pack, coalesced: true },
            block,
        };
        vec![case(1, 1, 16, 2, 256, 200, 8, 64), case(2, 3, 6, 2, 40, 150, 1, 128)]
    }
}

impl Contract for AttendBlocks {
    fn slots(&self) -> usize {
        self.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let cache = Traffic::read(size * s.cached());
        vec![
            Traffic::read(size * s.queries()),
            Traffic::read(4 * s.n()),
            Traffic::written(4 * s.partial(self.block)),
            cache,
            cache,
        ]
    }

    fn flops(&self) -> u64 {
        self.shape.attention_flops()
    }
}
