//! A product with the experts' matrices, in tiles.

use super::expert::ExpertDown;
use super::tiles::{GroupTiles, TileHeights};
use crate::quant::Quantized;
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// Where a grouped product goes. Place i of `order` holds pair p.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scatter {
    /// `out[i]`: in the order of `order`.
    None,
    /// `out[p]`.
    Pairs,
    /// `out[p]`, times `weights[p]`.
    Weighted,
}

/// For each place i of `order`, which holds pair p = (row, slot) of expert e: matrix e times `x[row]` if it gathers, times
/// `x[i]` otherwise; stored as [`Scatter`] says.
///
/// A row's result does not depend on the height of its tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedMatmul {
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
    /// Of the tiles in `tiles`.
    pub heights: TileHeights,
    /// x holds the layer's rows, which pairs share.
    pub gather: bool,
    /// Where products go.
    pub scatter: Scatter,
}

/// What a grouped product moves of x, order, tiles, weights; and of out.
pub(super) fn grouped_traffic(
    k: GroupTiles,
    (outputs, inputs): (usize, usize),
    gather: bool,
    scatter: Scatter,
    activation: Activation,
) -> ([Traffic; 4], Traffic) {
    let (size, pairs) = (activation.bytes(), k.rows * k.top_k);
    let x = if gather { k.rows } else { pairs };
    let order = if gather || scatter != Scatter::None { pairs } else { 0 };
    let weights = if scatter == Scatter::Weighted { pairs } else { 0 };
    let read = [size * x * inputs, 4 * order, 4 * k.tiles_len(), 4 * weights].map(Traffic::read);
    (read, Traffic::written(size * pairs * outputs))
}

impl GroupedMatmul {
    /// x activations `[rows, inputs]` if it gathers, else `[rows * top_k, inputs]` in the order of `order`; order and tiles as
    /// [`GroupTiles`] made them; weights f32 `[rows * top_k]`, read if [`Scatter::Weighted`]; weight, scales, biases `[experts,
    /// outputs, inputs]`; out activations `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("weights"),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").act(),
    ];

    /// What made `order` and `tiles`.
    pub fn grouping(&self) -> GroupTiles {
        GroupTiles { rows: self.rows, experts: self.experts, top_k: self.top_k, heights: self.heights }
    }

    /// The product of each pair, in f64, from the experts' ids `[rows, top_k]`: x by pair `[rows * top_k, inputs]`, the result
    /// by pair, without weights.
    pub fn reference(&self, x: &[f64], ids: &[u32], matrix: Quantized<'_>) -> Vec<f64> {
        let GroupedMatmul { rows, experts, top_k, outputs, inputs, format, .. } = *self;
        ExpertDown { rows, experts, top_k, outputs, inputs, format }.reference(x, ids, matrix)
    }

    /// The same as [`super::GroupedSwiglu`], with each way to read and to store.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for k in super::GroupedSwiglu::cases() {
            for (gather, scatter) in
                [(true, Scatter::None), (false, Scatter::Pairs), (false, Scatter::Weighted)]
            {
                cases.push(GroupedMatmul {
                    rows: k.rows,
                    experts: k.experts,
                    top_k: k.top_k,
                    outputs: k.outputs,
                    inputs: k.inputs,
                    format: k.up,
                    heights: k.heights,
                    gather,
                    scatter,
                });
            }
        }
        cases
    }
}

impl Contract for GroupedMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let active = self.experts.min(self.rows * self.top_k);
        let shape = (self.outputs, self.inputs);
        let (read, out) = grouped_traffic(self.grouping(), shape, self.gather, self.scatter, activation);
        let mut all = read.to_vec();
        all.extend(self.format.reads(active * self.outputs, self.inputs));
        all.push(out);
        all
    }

    fn flops(&self) -> u64 {
        2 * (self.rows * self.top_k * self.outputs * self.inputs) as u64
    }
}
