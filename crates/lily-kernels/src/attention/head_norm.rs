//! RMSNorm of each head.

use crate::norm::normed;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// `out[r, i] = x[r, i] * rsqrt(mean(x[r, i]^2) + eps) * w`: the same w for all heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How w is stored.
    pub weight: PlainType,
}

impl HeadNorm {
    /// x act `[rows, heads, head_dim]`; w `[head_dim]`; out act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("x").act(), Operand::read("w").tensor(), Operand::write("out").act()];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        x.chunks(self.head_dim).flat_map(|head| normed(head, w, f64::from(self.eps))).collect()
    }

    /// Widths that fill no vector, and a large epsilon so that leaving it out shows.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, head_dim, eps, weight| HeadNorm { rows, heads, head_dim, eps, weight };
        vec![
            case(1, 16, 256, 1e-6, PlainType::Bf16),
            case(3, 3, 33, 0.3, PlainType::F32),
            case(5, 2, 64, 1e-6, PlainType::F32),
            case(1, 1, 5, 0.3, PlainType::Bf16),
            case(2, 1, 300, 1e-6, PlainType::Bf16),
        ]
    }
}

impl Contract for HeadNorm {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let x = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(self.head_dim * self.weight.bytes()), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        4 * (self.rows * self.heads * self.head_dim) as u64
    }
}
