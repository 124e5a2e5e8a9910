//! The product of activations with a quantized matrix.

use crate::{Operand, QuantFormat};

/// out[r, o] = sum over i of x[r, i] * w[o, i], added to out where `accumulate` is set.
///
/// A row's result does not depend on how many rows run beside it: each output is summed over its inputs in one order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of x.
    pub rows: usize,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Of the matrix.
    pub format: QuantFormat,
    /// Add to what `out` holds (the residual stream) instead of replacing it.
    pub accumulate: bool,
}

impl Matmul {
    /// x f32 `[rows, inputs]`; weight, scales, biases `[outputs, inputs]`; out f32 `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("weight"),
        Operand::read("scales"),
        Operand::read("biases"),
        Operand::update("out"),
    ];

    /// The definition, in f64; `out` is what was there before.
    pub fn reference(&self, x: &[f64], weight: &[u8], scales: &[u8], biases: &[u8], out: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; self.rows * self.outputs];
        for o in 0..self.outputs {
            let w = self.format.dequantize_row(weight, scales, biases, o, self.inputs);
            for r in 0..self.rows {
                let dot: f64 = x[r * self.inputs..][..self.inputs].iter().zip(&w).map(|(a, b)| a * b).sum();
                let old = if self.accumulate { out[r * self.outputs + o] } else { 0.0 };
                y[r * self.outputs + o] = old + dot;
            }
        }
        y
    }

    /// Every format, rows on both sides of a register tile, outputs that fill no tile; for the most used formats, rows on
    /// both sides of a panel of 48, outputs that split unevenly, and long sums.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                for (rows, outputs, groups) in
                    [(1, 1, 1), (1, 37, 3), (2, 8, 2), (5, 9, 1), (6, 4, 2), (13, 21, 3)]
                {
                    let format = QuantFormat { bits, group };
                    let accumulate = rows == 6;
                    cases.push(Matmul { rows, outputs, inputs: groups * group, format, accumulate });
                }
            }
        }
        for (bits, group) in [(4, 64), (8, 64), (3, 32)] {
            let format = QuantFormat { bits, group };
            for (rows, outputs, inputs) in
                [(47, 7, 128), (48, 33, 64), (49, 16, 64), (97, 17, 128), (1, 100, 2048), (3, 130, 192)]
            {
                cases.push(Matmul { rows, outputs, inputs, format, accumulate: rows == 49 });
            }
        }
        cases
    }
}
