//! A product with the chosen experts' matrices, for few rows.

use super::expert::ExpertDown;
use crate::quant::Quantized;
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// For each pair p = (row, slot): `out[p]` = matrix `ids[p]` times `x[row]` if it gathers, times `x[p]` otherwise. One to
/// four rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedMatmul {
    /// Rows of the layer.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses.
    pub top_k: usize,
    /// Rows of each expert's matrix.
    pub outputs: usize,
    /// Columns of each expert's matrix.
    pub inputs: usize,
    /// Of the matrices.
    pub format: QuantFormat,
    /// x holds the layer's rows, which pairs share.
    pub gather: bool,
}

impl RoutedMatmul {
    /// x activations `[rows, inputs]` if it gathers, else `[rows * top_k, inputs]`; ids u32 `[rows * top_k]`; weight, scales, biases
    /// `[experts, outputs, inputs]`; out activations `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("ids").u32(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").act(),
    ];

    /// The product of each pair, in f64, with x by pair `[rows * top_k, inputs]`.
    pub fn reference(&self, x: &[f64], ids: &[u32], matrix: Quantized<'_>) -> Vec<f64> {
        let RoutedMatmul { rows, experts, top_k, outputs, inputs, format, .. } = *self;
        ExpertDown { rows, experts, top_k, outputs, inputs, format }.reference(x, ids, matrix)
    }

    /// The same as [`super::RoutedSwiglu`], with both ways to read.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for k in super::RoutedSwiglu::cases() {
            for gather in [true, false] {
                cases.push(RoutedMatmul {
                    rows: k.rows,
                    experts: k.experts,
                    top_k: k.top_k,
                    outputs: k.outputs,
                    inputs: k.inputs,
                    format: k.up,
                    gather,
                });
            }
        }
        cases
    }
}

impl Contract for RoutedMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        let x = if self.gather { self.rows } else { pairs };
        let mut all = vec![Traffic::read(size * x * self.inputs), Traffic::read(4 * pairs)];
        all.extend(self.format.reads(self.experts.min(pairs) * self.outputs, self.inputs));
        all.push(Traffic::written(size * pairs * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        2 * (self.rows * self.top_k * self.outputs * self.inputs) as u64
    }
}
