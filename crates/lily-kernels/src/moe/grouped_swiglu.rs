//! The first half of the experts, in tiles.

use super::expert::ExpertSwiglu;
use super::tiles::{GroupTiles, TileHeights};
use crate::quant::Quantized;
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// For each place i of `order`, which holds pair p = (row, slot) of expert e: `out[i] = SiLU(gate_e x_row) * (up_e x_row)`.
///
/// Rows of x are read through `order`; the experts' products stand in its order, so that [`super::GroupedMatmul`] reads
/// them one after the other. A row's result does not depend on the height of its tile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedSwiglu {
    /// Rows of x.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses.
    pub top_k: usize,
    /// Rows of each expert's matrices.
    pub outputs: usize,
    /// Columns of each expert's matrices.
    pub inputs: usize,
    /// Of the gate matrices.
    pub gate: QuantFormat,
    /// Of the up matrices.
    pub up: QuantFormat,
    /// Of the tiles in `tiles`.
    pub heights: TileHeights,
}

impl GroupedSwiglu {
    /// x activations `[rows, inputs]`; order and tiles as [`GroupTiles`] made them; gate and up `[experts, outputs, inputs]`;
    /// out activations `[rows * top_k, outputs]`, in the order of `order`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").act(),
    ];

    /// What made `order` and `tiles`.
    pub fn grouping(&self) -> GroupTiles {
        GroupTiles { rows: self.rows, experts: self.experts, top_k: self.top_k, heights: self.heights }
    }

    /// The definition, in f64, from the experts' ids `[rows, top_k]`: by pair, not by place in `order`.
    pub fn reference(&self, x: &[f64], ids: &[u32], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        let GroupedSwiglu { rows, experts, top_k, outputs, inputs, .. } = *self;
        ExpertSwiglu { rows, experts, top_k, outputs, inputs, gate: self.gate, up: self.up }
            .reference(x, ids, gate, up)
    }

    /// Formats; one row; experts without rows and on both sides of each height; outputs that fill no block.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in [(f(4, 64), f(4, 64)), (f(3, 32), f(8, 128))] {
            for (largest, rows, experts, top_k, outputs) in
                [(64, 1, 16, 4, 19), (32, 50, 2, 2, 40), (64, 140, 8, 2, 31), (16, 33, 2, 1, 33)]
            {
                let heights = TileHeights { largest };
                cases.push(GroupedSwiglu { rows, experts, top_k, outputs, inputs: 256, gate, up, heights });
            }
        }
        cases
    }
}

impl Contract for GroupedSwiglu {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        let active = self.experts.min(pairs);
        let mut all = vec![
            Traffic::read(size * self.rows * self.inputs),
            Traffic::read(4 * pairs),
            Traffic::read(4 * self.grouping().tiles_len()),
        ];
        all.extend(self.gate.reads(active * self.outputs, self.inputs));
        all.extend(self.up.reads(active * self.outputs, self.inputs));
        all.push(Traffic::written(size * pairs * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        4 * (self.rows * self.top_k * self.outputs * self.inputs) as u64
    }
}
