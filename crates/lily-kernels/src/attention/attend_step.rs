//! The attention of a decode step in one launch.

use super::{AttentionPrep, RowsOptions};
use crate::{Activation, Contract, Operand, Traffic};

/// [`AttentionPrep`] and [`super::Attend`] in one.
///
/// The rows of a slot have positions one after the other. A row attends to the cache before the slot's first row, and to the
/// new keys of the slot's rows up to itself, which are not read back from the cache: each threadgroup makes those that it
/// needs. One of them writes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendStep {
    /// Sizes, norms and RoPE.
    pub prep: AttentionPrep,
    /// How.
    pub options: RowsOptions,
}

impl AttendStep {
    /// qg act `[n, query_heads, 2, head_dim]`; k, v act `[n, kv_heads, head_dim]`; q_norm, k_norm `[head_dim]`; positions u32
    /// `[n]`; out act `[n, query_heads, head_dim]`; a slot's keys and values act `[context, kv_heads, head_dim]`, read before
    /// the slot's rows and written at them. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("out").act(),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// An empty cache and a full one, one row and several, around a page.
    pub fn cases() -> Vec<Self> {
        step_shapes().into_iter().map(|(prep, options)| AttendStep { prep, options }).collect()
    }
}

/// Shapes of decode steps.
pub(super) fn step_shapes() -> Vec<(AttentionPrep, RowsOptions)> {
    use super::AttentionShape;
    use crate::PlainType;
    let case = |slots, rows, query_heads, kv_heads, head_dim, rotary_dim, context, pack| {
        let prep = AttentionPrep {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            rotary_dim,
            rope_theta: 1e7,
            eps: 1e-6,
            q_norm: PlainType::Bf16,
            k_norm: PlainType::F32,
        };
        (prep, RowsOptions { pack, coalesced: true })
    };
    vec![case(1, 1, 16, 2, 256, 64, 200, 8), case(2, 3, 6, 2, 40, 20, 150, 1), case(1, 4, 3, 1, 33, 2, 4, 3)]
}

/// Traffic of a cache of which a step reads what was there and writes the new rows.
pub(super) fn stepped(prep: &AttentionPrep, size: usize) -> Traffic {
    let s = &prep.shape;
    let old = s.cached() - s.new_keys();
    Traffic { read: (size * old) as u64, written: (size * s.new_keys()) as u64 }
}

impl Contract for AttendStep {
    fn slots(&self) -> usize {
        self.prep.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (p, s, size) = (&self.prep, &self.prep.shape, activation.bytes());
        let (q, kv, cache) = (size * s.queries(), size * s.new_keys(), stepped(p, size));
        vec![
            Traffic::read(2 * q),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * p.q_norm.bytes()),
            Traffic::read(s.head_dim * p.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
            cache,
            cache,
        ]
    }

    fn flops(&self) -> u64 {
        self.prep.flops() + self.prep.shape.attention_flops()
    }
}
