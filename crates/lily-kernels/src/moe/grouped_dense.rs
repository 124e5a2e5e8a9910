//! A product with the experts' matrices after they were dequantized into memory.

use super::grouped_matmul::{Scatter, THREADS, grouped_traffic};
use super::tiles::{GroupTiles, TileHeights};
use crate::bindings::grouped_dense;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

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
    /// Columns of each expert's matrix: a multiple of 32, like those of every quantized matrix.
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
        Operand::read("x").fine(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("weights"),
        Operand::read("weight").fine(),
        Operand::write("out").fine(),
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
        crate::product(&[2, self.rows, self.top_k, self.outputs, self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = grouped_dense::Constants {
            largest: self.heights.largest as u32,
            gather: self.gather,
            scatter: self.scatter.number(),
        };
        let blocks = self.outputs.div_ceil(THREADS);
        let params = grouped_dense::Params {
            top_k: self.top_k as u32,
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            blocks: blocks as u32,
        };
        let grid = [blocks * self.grouping().max_tiles(), 1, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&grouped_dense::TEXT, constants, params, grid, [THREADS, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GroupedDense {
    /// The sizes of [`super::GroupedMatmul`].
    fn gpu_cases() -> Vec<Self> {
        let mut cases = GroupedDense::cases();
        let case = |rows, outputs, inputs, largest| GroupedDense {
            rows,
            experts: 1,
            top_k: 1,
            outputs,
            inputs,
            heights: TileHeights { largest },
            gather: rows % 2 == 0,
            scatter: [Scatter::None, Scatter::Pairs, Scatter::Weighted][rows % 3],
        };
        for (rows, outputs, largest) in
            [(1, 32, 64), (15, 33, 32), (17, 129, 64), (33, 127, 64), (64, 1, 64), (65, 260, 64), (20, 8, 16)]
        {
            cases.push(case(rows, outputs, 96, largest));
        }
        cases.push(GroupedDense { experts: 4, top_k: 2, ..case(37, 80, 2048, 64) });
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::grouped_matmul::Rows;
        use crate::testing::{Bounds, CaseBuilder, Store, magnitude, wide};
        let (b, outputs, inputs) = (Bounds::new(activation), self.outputs, self.inputs);
        let builder = CaseBuilder::new(*self, activation);
        let rows = Rows::new(builder, self.grouping(), inputs, (self.gather, self.scatter), random);
        let store = Store::of(crate::Element::Fine, activation);
        let scale = 1.0 / (inputs as f32).sqrt();
        let weight: Vec<f32> = random
            .values(self.experts * outputs * inputs, scale)
            .into_iter()
            .map(|v| store.round(v))
            .collect();
        let wide_weight = wide(&weight);
        let values = self.reference(&rows.x, &rows.ids, &wide_weight);
        let mut products = Vec::with_capacity(values.len());
        for (p, x) in rows.x.chunks(inputs).enumerate() {
            for o in 0..outputs {
                let row = &wide_weight[(rows.ids[p] as usize * outputs + o) * inputs..][..inputs];
                products.push((values[p * outputs + o], b.sum(inputs, 1) * magnitude(x, row)));
            }
        }
        let (want, error) = rows.stored(b, outputs, &products);
        rows.builder.input(&weight).output(want, error).build()
    }
}
