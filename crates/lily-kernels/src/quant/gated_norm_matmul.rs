//! The norm and gate after Gated DeltaNet, and the product behind them, in one launch.

use super::{Matmul, Method, Output, Parts};
use crate::norm::GatedNorm;
use crate::{Activation, Contract, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] += sum over i of g[r, i] * w[o, i]` with `g[r, h] = RMSNorm(y[r, h]; norm) * SiLU(z[r, h])` for each head h, of
/// at most [`Method::MOST_ROWS`] rows; on GPUs only.
///
/// Every threadgroup computes the norms of its rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNormMatmul {
    /// Rows.
    pub rows: usize,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the matrix.
    pub format: QuantFormat,
}

impl GatedNormMatmul {
    /// y, z activations `[rows, heads, width]`; norm `[width]`; weight, scales, biases `[outputs, heads * width]`; out f32
    /// `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("y").act(),
        Operand::read("z").act(),
        Operand::read("norm").tensor(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::update("out"),
    ];

    /// Heads that fill a vector and heads that do not; 1 to 4 rows.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for (bits, group) in [(4, 64), (8, 64), (5, 32)] {
            let format = QuantFormat { bits, group };
            for (rows, outputs, heads, width, eps) in
                [(1, 64, 4, 128, 1e-6), (2, 19, 2, 64, 0.2), (3, 8, 32, 16, 1e-6), (4, 33, 4, 128, 1e-6)]
            {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(GatedNormMatmul { rows, outputs, heads, width, eps, norm, format });
            }
        }
        cases
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.heads * self.width
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> GatedNorm {
        let &GatedNormMatmul { rows, heads, width, eps, norm, .. } = self;
        GatedNorm { rows, heads, width, eps, weight: norm }
    }

    /// The product alone.
    pub(crate) fn product(&self) -> Matmul {
        let &GatedNormMatmul { rows, outputs, format, .. } = self;
        let (parts, inputs) = (Parts::one(outputs), self.inputs());
        Matmul { rows, parts, inputs, format, out: Output::Add, method: Method::Rows }
    }
}

impl Contract for GatedNormMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all = self.normed().traffic(activation);
        all.truncate(3);
        all.extend(self.product().traffic(activation).split_off(1));
        all
    }

    fn flops(&self) -> u64 {
        self.normed().flops() + self.product().flops()
    }
}
