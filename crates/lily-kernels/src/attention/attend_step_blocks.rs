//! The attention of a decode step over a long context: norms, RoPE, cache write, and blocks of keys apart.

use super::attend_step::{step_shapes, stepped};
use super::{AttentionPrep, RowsOptions};
use crate::{Activation, Contract, Operand, Traffic};

/// [`AttentionPrep`] and [`super::AttendBlocks`] in one, under the rules of [`super::AttendStep`]: what is left to do is
/// [`super::AttendCombine`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendStepBlocks {
    /// Sizes, norms and RoPE.
    pub prep: AttentionPrep,
    /// How.
    pub options: RowsOptions,
    /// Keys of a block: a multiple of [`super::PAGE_TOKENS`].
    pub block: usize,
}

impl AttendStepBlocks {
    /// qg act `[n, query_heads, 2, head_dim]`, of which the queries are read; k, v act `[n, kv_heads, head_dim]`; q_norm, k_norm
    /// `[head_dim]`; positions u32 `[n]`; partial f32 `[n, query_heads, blocks, head_dim + 2]`, blocks = ceil(context / block);
    /// a slot's keys and values act `[context, kv_heads, head_dim]`, read before the slot's rows and written at them.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("partial"),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// Those of [`super::AttendStep`], in blocks.
    pub fn cases() -> Vec<Self> {
        let step = |(prep, options)| AttendStepBlocks { prep, options, block: 64 };
        step_shapes().into_iter().map(step).collect()
    }
}

impl Contract for AttendStepBlocks {
    fn slots(&self) -> usize {
        self.prep.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (p, s, size) = (&self.prep, &self.prep.shape, activation.bytes());
        let (kv, cache) = (size * s.new_keys(), stepped(p, size));
        vec![
            Traffic::read(size * s.queries()),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * p.q_norm.bytes()),
            Traffic::read(s.head_dim * p.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(4 * s.partial(self.block)),
            cache,
            cache,
        ]
    }

    fn flops(&self) -> u64 {
        self.prep.flops() + self.prep.shape.attention_flops()
    }
}
