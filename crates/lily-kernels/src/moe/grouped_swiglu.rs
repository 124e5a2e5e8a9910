//! The first half of the experts, in tiles.

use super::expert::ExpertSwiglu;
use super::tiles::{GroupTiles, TileHeights};
use crate::bindings::grouped_swiglu;
use crate::quant::Quantized;
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

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
        Operand::read("x").fine(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").fine(),
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

/// Four simdgroups of 16 outputs of each matrix: a threadgroup of 64-row tiles needs as many to fetch x.
const THREADS: usize = 128;

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
        crate::product(&[4, self.rows, self.top_k, self.outputs, self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = grouped_swiglu::Constants {
            gate_bits: self.gate.bits as u32,
            gate_group: self.gate.group as u32,
            up_bits: self.up.bits as u32,
            up_group: self.up.group as u32,
            largest: self.heights.largest as u32,
        };
        let blocks = self.outputs.div_ceil(THREADS / 2);
        let params = grouped_swiglu::Params {
            top_k: self.top_k as u32,
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            blocks: blocks as u32,
        };
        let grid = [blocks * self.grouping().max_tiles(), 1, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&grouped_swiglu::TEXT, constants, params, grid, [THREADS, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GroupedSwiglu {
    /// An expert's rows on both sides of each height, outputs of each width of a simdgroup and a threadgroup, all formats, true
    /// widths.
    fn gpu_cases() -> Vec<Self> {
        let mut cases = GroupedSwiglu::cases();
        let case = |rows, outputs, inputs, (bits, group), largest| {
            let (format, heights) = (QuantFormat { bits, group }, TileHeights { largest });
            let (gate, up) = (format, format);
            GroupedSwiglu { rows, experts: 1, top_k: 1, outputs, inputs, gate, up, heights }
        };
        for (rows, outputs, largest) in [
            (1, 16, 64),
            (15, 17, 32),
            (16, 64, 64),
            (17, 65, 64),
            (32, 15, 64),
            (33, 63, 64),
            (64, 1, 64),
            (65, 130, 64),
            (33, 40, 32),
            (20, 8, 16),
        ] {
            cases.push(case(rows, outputs, 64, (4, 32), largest));
        }
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(case(5, 20, 128, (bits, group), 64));
            }
        }
        cases.push(GroupedSwiglu { experts: 4, top_k: 2, ..case(37, 80, 2048, (4, 64), 64) });
        cases.push(GroupedSwiglu { experts: 6, top_k: 3, ..case(11, 64, 256, (4, 64), 16) });
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Choice, choose, gated_error, most_tiles, product, with_matrix};
        use crate::quant::Method;
        use crate::testing::{Bounds, CaseBuilder, Matrix, wide};
        let b = Bounds::new(activation);
        let GroupedSwiglu { rows, experts, top_k, outputs, inputs, .. } = *self;
        let builder = CaseBuilder::new(*self, activation);
        let x = builder.rounded(&random.values(rows * inputs, 1.0));
        let ids = choose(random, rows, experts, top_k, Choice::of(rows, experts, top_k));
        let gate = Matrix::random(random, experts * outputs, inputs, self.gate);
        let up = Matrix::random(random, experts * outputs, inputs, self.up);
        let values = self.reference(&wide(&x), &ids, gate.tensors(), up.tensors());
        let (order, tiles) = self.grouping().reference(&ids);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for p in order.iter().map(|p| *p as usize) {
            let x = wide(&x[p / top_k * inputs..][..inputs]);
            for o in 0..outputs {
                let row = ids[p] as usize * outputs + o;
                let (g, u) =
                    (product(b, &gate, Method::Tiles, row, &x), product(b, &up, Method::Tiles, row, &x));
                let value = values[p * outputs + o];
                error.push(b.fine().store(value, gated_error(b, g, u)));
                want.push(value);
            }
        }
        let builder = with_matrix(with_matrix(builder.input(&x).ids(&order).ids(&tiles), &gate), &up)
            .output(want, error);
        if most_tiles(self.grouping(), &ids) { builder } else { builder.touches_less() }.build()
    }
}
