//! A norm and the product behind it, in one launch.

use super::{Matmul, Method, Output, Parts};
use crate::norm::RmsNorm;
use crate::{Activation, Contract, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] = sum over i of RMSNorm(x[r])[i] * w[o, i]`, stored or added as `out` says, of at most [`Method::MOST_ROWS`]
/// rows; on GPUs only.
///
/// The norm costs less than a launch of its own: every threadgroup computes the root mean square of its rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormMatmul {
    /// Rows of x.
    pub rows: usize,
    /// Rows of the matrix, in parts.
    pub parts: Parts,
    /// Columns of the matrix, and width of the norm.
    pub inputs: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the matrix.
    pub format: QuantFormat,
    /// Where the product goes.
    pub out: Output,
}

impl NormMatmul {
    /// x f32 `[rows, inputs]`; norm `[inputs]`; weight, scales, biases `[outputs, inputs]`; out activations or f32,
    /// `[rows, width]` of each part.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("norm").tensor(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::update("out").act(),
    ];

    /// 1 to 4 rows, parts, every place where a product goes; both formats with fast paths and one without.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for (bits, group, inputs) in [(4, 64, 256), (8, 64, 128), (3, 32, 96), (4, 64, 2048)] {
            let format = QuantFormat { bits, group };
            for (rows, parts, out) in [
                (1, Parts::new(&[64, 32, 4, 4]), Output::Activation),
                (2, Parts::one(17), Output::F32),
                (4, Parts::new(&[9, 24]), Output::Add),
            ] {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(NormMatmul { rows, parts, inputs, eps: 1e-6, norm, format, out });
            }
        }
        cases
    }

    /// Outputs of all parts.
    pub fn outputs(&self) -> usize {
        self.parts.total()
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> RmsNorm {
        RmsNorm { rows: self.rows, width: self.inputs, eps: self.eps, weight: self.norm }
    }

    /// The product alone.
    pub(crate) fn product(&self) -> Matmul {
        let &NormMatmul { rows, parts, inputs, format, out, .. } = self;
        Matmul { rows, parts, inputs, format, out, method: Method::Rows }
    }
}

impl Contract for NormMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all =
            vec![Traffic::read(4 * self.rows * self.inputs), Traffic::read(self.inputs * self.norm.bytes())];
        all.extend(self.product().traffic(activation).split_off(1));
        all
    }

    fn flops(&self) -> u64 {
        self.normed().flops() + self.product().flops()
    }
}
