//! A product with the experts' matrices after they were dequantized into memory.

use super::grouped_matmul::{Scatter, grouped_traffic};
use super::tiles::{GroupTiles, TileHeights};
use crate::{Activation, Contract, Operand, Traffic};

/// [`super::GroupedMatmul`] with matrices of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedDense {
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
    /// Of the tiles in `tiles`.
    pub heights: TileHeights,
    /// x holds the layer's rows, which pairs share.
    pub gather: bool,
    /// Where products go.
    pub scatter: Scatter,
}

impl GroupedDense {
    /// x activations `[rows, inputs]` if it gathers, else `[rows * top_k, inputs]` in the order of `order`; order and tiles as
    /// [`GroupTiles`] made them; weights f32 `[rows * top_k]`, read if [`Scatter::Weighted`]; weight activations `[experts,
    /// outputs, inputs]`; out activations `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("weights"),
        Operand::read("weight").act(),
        Operand::write("out").act(),
    ];

    /// What made `order` and `tiles`.
    pub fn grouping(&self) -> GroupTiles {
        GroupTiles { rows: self.rows, experts: self.experts, top_k: self.top_k, heights: self.heights }
    }

    /// The product of each pair, in f64, from the experts' ids `[rows, top_k]`: x by pair `[rows * top_k, inputs]`, the result
    /// by pair, without weights.
    pub fn reference(&self, x: &[f64], ids: &[u32], weight: &[f64]) -> Vec<f64> {
        let (outputs, inputs) = (self.outputs, self.inputs);
        let mut y = Vec::with_capacity(ids.len() * outputs);
        for (x, e) in x.chunks(inputs).zip(ids) {
            let matrix = &weight[*e as usize * outputs * inputs..][..outputs * inputs];
            y.extend(matrix.chunks(inputs).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()));
        }
        y
    }

    /// The same as [`super::GroupedMatmul`], without formats.
    pub fn cases() -> Vec<Self> {
        let mut cases: Vec<Self> = Vec::new();
        for k in super::GroupedMatmul::cases() {
            let case = GroupedDense {
                rows: k.rows,
                experts: k.experts,
                top_k: k.top_k,
                outputs: k.outputs,
                inputs: k.inputs,
                heights: k.heights,
                gather: k.gather,
                scatter: k.scatter,
            };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }
}

impl Contract for GroupedDense {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let active = self.experts.min(self.rows * self.top_k);
        let shape = (self.outputs, self.inputs);
        let (read, out) = grouped_traffic(self.grouping(), shape, self.gather, self.scatter, activation);
        let mut all = read.to_vec();
        all.extend([Traffic::read(activation.bytes() * active * self.outputs * self.inputs), out]);
        all
    }

    fn flops(&self) -> u64 {
        2 * (self.rows * self.top_k * self.outputs * self.inputs) as u64
    }
}
