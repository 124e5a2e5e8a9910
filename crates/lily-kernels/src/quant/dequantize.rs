//! A quantized matrix written out, for products that dequantize in a launch of their own.

use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// `out[o, i] = scale * q[o, i] + bias`; on GPUs only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dequantize {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Of the matrix.
    pub format: QuantFormat,
}

impl Dequantize {
    /// weight, scales, biases, out activations: `[rows, cols]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").act(),
    ];

    /// Every format.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(Dequantize { rows: 5, cols: 3 * group, format: QuantFormat { bits, group } });
            }
        }
        cases
    }

    /// The definition, in f64.
    pub fn reference(&self, weight: &[u8], scales: &[u8], biases: &[u8]) -> Vec<f64> {
        (0..self.rows)
            .flat_map(|r| self.format.dequantize_row(weight, scales, biases, r, self.cols))
            .collect()
    }
}

impl Contract for Dequantize {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all = self.format.reads(self.rows, self.cols).to_vec();
        all.push(Traffic::written(activation.bytes() * self.rows * self.cols));
        all
    }

    fn flops(&self) -> u64 {
        2 * (self.rows * self.cols) as u64
    }
}
