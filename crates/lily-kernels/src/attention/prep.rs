//! Norm, RoPE and the cache write.

use super::{AttentionShape, frequency, turn};
use crate::norm::normed;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// For each row: q = RoPE(RMSNorm(q; q_norm)) and k = RoPE(RMSNorm(k; k_norm)), k and v written to the cache at
/// `positions[row]`.
///
/// `qg` holds of each query head first q, then the gate (which [`super::Attend`] reads). RoPE turns the first
/// `rotary_dim` dimensions in half-split pairs (j, j + rotary_dim / 2) by the angle position * theta^(-2j / rotary_dim):
/// frequency and angle rounded to f32 as the oracle does, sine and cosine accurate for any angle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionPrep {
    /// Sizes.
    pub shape: AttentionShape,
    /// Leading dimensions that RoPE turns; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// Epsilon of both norms.
    pub eps: f32,
    /// How q_norm is stored.
    pub q_norm: PlainType,
    /// How k_norm is stored.
    pub k_norm: PlainType,
}

impl AttentionPrep {
    /// qg f32 `[n, query_heads, 2, head_dim]`; k, v f32 `[n, kv_heads, head_dim]`; q_norm, k_norm `[head_dim]`; positions u32
    /// `[n]`; q f32 `[n, query_heads, head_dim]`; a slot's keys and values f32 `[context, kv_heads, head_dim]`, of which the
    /// rows at `positions` are written. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("q").act(),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// The inverse frequency of pair `j`, rounded to f32.
    pub fn frequency(&self, j: usize) -> f32 {
        frequency(self.rope_theta, self.rotary_dim, j)
    }

    fn turn(&self, x: &mut [f64], position: u32) {
        turn(x, position, self.rotary_dim, self.rope_theta);
    }

    /// The definition, in f64: (q `[n, query_heads, head_dim]`, k `[n, kv_heads, head_dim]`).
    pub fn reference(
        &self,
        qg: &[f64],
        k: &[f64],
        q_norm: &[f64],
        k_norm: &[f64],
        positions: &[u32],
    ) -> (Vec<f64>, Vec<f64>) {
        let (d, h, hkv) = (self.shape.head_dim, self.shape.query_heads, self.shape.kv_heads);
        let eps = f64::from(self.eps);
        let (mut q_out, mut k_out) = (Vec::new(), Vec::new());
        for (r, position) in positions.iter().enumerate() {
            for i in 0..h {
                let mut x = normed(&qg[(r * h + i) * 2 * d..][..d], q_norm, eps);
                self.turn(&mut x, *position);
                q_out.extend(x);
            }
            for i in 0..hkv {
                let mut x = normed(&k[(r * hkv + i) * d..][..d], k_norm, eps);
                self.turn(&mut x, *position);
                k_out.extend(x);
            }
        }
        (q_out, k_out)
    }

    /// Few and many heads, rotary parts of every share, several sequences, rows on both sides of a block of 64 tokens,
    /// positions up to 2.6e5.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, rotary_dim, context| AttentionPrep {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            rotary_dim,
            rope_theta: 1e7,
            eps: 1e-6,
            q_norm: PlainType::Bf16,
            k_norm: PlainType::F32,
        };
        vec![
            case(1, 1, 8, 1, 256, 64, 300),
            case(3, 1, 4, 2, 64, 16, 70),
            case(1, 9, 4, 2, 40, 40, 262_144),
            case(1, 5, 2, 2, 33, 2, 40),
            case(1, 66, 3, 1, 16, 8, 200_000),
            case(2, 3, 6, 3, 6, 4, 262_144),
        ]
    }
}

impl Contract for AttentionPrep {
    fn slots(&self) -> usize {
        self.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let (q, kv) = (size * s.queries(), size * s.new_keys());
        vec![
            Traffic::read(q),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * self.q_norm.bytes()),
            Traffic::read(s.head_dim * self.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
            Traffic::written(kv),
            Traffic::written(kv),
        ]
    }

    fn flops(&self) -> u64 {
        let s = &self.shape;
        (s.n() * (s.query_heads + s.kv_heads) * (4 * s.head_dim + 3 * self.rotary_dim)) as u64
    }
}
