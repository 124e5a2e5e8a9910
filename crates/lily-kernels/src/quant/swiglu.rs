//! The first half of a gated feed-forward block.

use super::Method;
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// `out[r, o] = SiLU(gate_o . x_r) * (up_o . x_r)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swiglu {
    /// Rows of x.
    pub rows: usize,
    /// Rows of each matrix.
    pub outputs: usize,
    /// Columns of each matrix.
    pub inputs: usize,
    /// Of the gate matrix.
    pub gate: QuantFormat,
    /// Of the up matrix.
    pub up: QuantFormat,
    /// How a GPU computes it.
    pub method: Method,
}

/// x * sigmoid(x).
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// sigmoid(x).
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Bytes of the three tensors of a quantized matrix: weight, scales, biases.
pub type Quantized<'a> = (&'a [u8], &'a [u8], &'a [u8]);

impl Swiglu {
    /// x activations `[rows, inputs]`; gate and up `[outputs, inputs]`; out activations `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").act(),
    ];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        let mut y = vec![0.0; self.rows * self.outputs];
        for o in 0..self.outputs {
            let g = self.gate.dequantize_row(gate.0, gate.1, gate.2, o, self.inputs);
            let u = self.up.dequantize_row(up.0, up.1, up.2, o, self.inputs);
            for r in 0..self.rows {
                let x = &x[r * self.inputs..][..self.inputs];
                let dot = |w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
                y[r * self.outputs + o] = silu(dot(&g)) * dot(&u);
            }
        }
        y
    }

    /// Equal and unequal formats of the two matrices; rows on both sides of a panel of 48.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in
            [(f(4, 64), f(4, 64)), (f(4, 32), f(6, 64)), (f(8, 128), f(3, 32)), (f(2, 64), f(5, 128))]
        {
            for (rows, outputs) in [(1, 5), (4, 33), (11, 7), (48, 17), (50, 9)] {
                cases.push(Swiglu { rows, outputs, inputs: 256, gate, up, method: Method::Tiles });
            }
        }
        cases
    }
}

impl Contract for Swiglu {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let size = activation.bytes();
        let mut all = vec![Traffic::read(size * self.rows * self.inputs)];
        all.extend(self.gate.reads(self.outputs, self.inputs));
        all.extend(self.up.reads(self.outputs, self.inputs));
        all.push(Traffic::written(size * self.rows * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        4 * (self.rows * self.outputs * self.inputs) as u64
    }
}
