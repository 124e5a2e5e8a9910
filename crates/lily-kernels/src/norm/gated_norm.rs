//! The norm and gate after Gated DeltaNet.

use super::normed;
use crate::quant::silu;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// `out[r, h] = RMSNorm(y[r, h]; w) * SiLU(z[r, h]): the norm comes before the gate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Rows.
    pub rows: usize,
    /// Value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How w is stored.
    pub weight: PlainType,
}

impl GatedNorm {
    /// y, z f32 `[rows, heads, width]`; w `[width]`; out f32 `[rows, heads, width]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("y").act(),
        Operand::read("z").act(),
        Operand::read("w").tensor(),
        Operand::write("out").act(),
    ];

    /// The definition, in f64.
    pub fn reference(&self, y: &[f64], z: &[f64], w: &[f64]) -> Vec<f64> {
        let normed = y.chunks(self.width).flat_map(|head| normed(head, w, f64::from(self.eps)));
        normed.zip(z).map(|(y, z)| y * silu(*z)).collect()
    }

    /// Head widths that do and do not fill a vector.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, width, eps, weight| GatedNorm { rows, heads, width, eps, weight };
        vec![
            case(1, 4, 128, 1e-6, PlainType::Bf16),
            case(5, 3, 64, 0.2, PlainType::F32),
            case(2, 2, 37, 1e-6, PlainType::Bf16),
            case(1, 1, 3, 1e-6, PlainType::F32),
        ]
    }
}

impl Contract for GatedNorm {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let bytes = activation.bytes() * self.rows * self.heads * self.width;
        let weight = Traffic::read(self.width * self.weight.bytes());
        vec![Traffic::read(bytes), Traffic::read(bytes), weight, Traffic::written(bytes)]
    }

    fn flops(&self) -> u64 {
        8 * (self.rows * self.heads * self.width) as u64
    }
}
