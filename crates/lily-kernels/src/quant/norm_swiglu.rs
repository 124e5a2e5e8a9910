//! A norm and the first half of a gated feed-forward block behind it, in one launch.

use super::{Method, Swiglu};
use crate::norm::RmsNorm;
use crate::{Activation, Contract, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] = SiLU(gate_o . n_r) * (up_o . n_r)` with `n_r = RMSNorm(x[r]; norm)`, of at most [`Method::MOST_ROWS`] rows; on
/// GPUs only.
///
/// Every threadgroup computes the root mean square of its rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSwiglu {
    /// Rows of x.
    pub rows: usize,
    /// Rows of each matrix.
    pub outputs: usize,
    /// Columns of each matrix, and width of the norm.
    pub inputs: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the gate matrix.
    pub gate: QuantFormat,
    /// Of the up matrix.
    pub up: QuantFormat,
}

impl NormSwiglu {
    /// x f32 `[rows, inputs]`; norm `[inputs]`; gate and up `[outputs, inputs]`; out activations `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("norm").tensor(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").act(),
    ];

    /// Equal and unequal formats of the two matrices; 1 to 4 rows.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in [(f(4, 64), f(4, 64)), (f(8, 64), f(4, 32)), (f(3, 32), f(6, 128))] {
            for (rows, outputs, inputs) in [(1, 64, 256), (2, 7, 128), (4, 33, 2048)] {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(NormSwiglu { rows, outputs, inputs, eps: 1e-6, norm, gate, up });
            }
        }
        cases
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> RmsNorm {
        RmsNorm { rows: self.rows, width: self.inputs, eps: self.eps, weight: self.norm }
    }

    /// What follows the norm.
    pub(crate) fn product(&self) -> Swiglu {
        let &NormSwiglu { rows, outputs, inputs, gate, up, .. } = self;
        Swiglu { rows, outputs, inputs, gate, up, method: Method::Rows }
    }
}

impl Contract for NormSwiglu {
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
