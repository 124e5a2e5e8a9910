//! A product with the experts' matrices, in tiles.

use super::expert::ExpertDown;
use super::tiles::{GroupTiles, TileHeights};
use crate::bindings::grouped_matmul;
use crate::quant::Quantized;
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

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

impl Scatter {
    /// As `msl/experts.h` numbers them.
    pub(super) fn number(self) -> u32 {
        match self {
            Scatter::None => 0,
            Scatter::Pairs => 1,
            Scatter::Weighted => 2,
        }
    }
}

/// Four simdgroups of 32 outputs: a threadgroup of 64-row tiles needs as many to fetch x.
pub(super) const THREADS: usize = 128;

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
        Operand::read("x").fine(),
        Operand::read("order").u32(),
        Operand::read("tiles").u32(),
        Operand::read("weights"),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").fine(),
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
        crate::product(&[2, self.rows, self.top_k, self.outputs, self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = grouped_matmul::Constants {
            bits: self.format.bits as u32,
            group: self.format.group as u32,
            largest: self.heights.largest as u32,
            gather: self.gather,
            scatter: self.scatter.number(),
        };
        let blocks = self.outputs.div_ceil(THREADS);
        let params = grouped_matmul::Params {
            top_k: self.top_k as u32,
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            blocks: blocks as u32,
        };
        let grid = [blocks * self.grouping().max_tiles(), 1, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&grouped_matmul::TEXT, constants, params, grid, [THREADS, 1, 1]))
    }
}

/// The operands x, order, tiles and weights of a grouped product's case, and what its rows are multiplied with.
#[cfg(feature = "testing")]
pub(super) struct Rows {
    pub(super) builder: crate::testing::CaseBuilder,
    pub(super) ids: Vec<u32>,
    order: Vec<u32>,
    scatter: Scatter,
    weights: Vec<f32>,
    /// By pair.
    pub(super) x: Vec<f64>,
}

#[cfg(feature = "testing")]
impl Rows {
    pub(super) fn new(
        builder: crate::testing::CaseBuilder,
        k: GroupTiles,
        inputs: usize,
        (gather, scatter): (bool, Scatter),
        random: &mut crate::random::Random,
    ) -> Self {
        use super::testing::{Choice, choose, most_tiles};
        let pairs = k.rows * k.top_k;
        let stored = builder.rounded(&random.values(if gather { k.rows } else { pairs } * inputs, 1.0));
        let ids = choose(random, k.rows, k.experts, k.top_k, Choice::of(k.rows, k.experts, k.top_k));
        let (order, tiles) = k.reference(&ids);
        let mut x = vec![0.0; pairs * inputs];
        for (i, p) in order.iter().map(|p| *p as usize).enumerate() {
            let from = if gather { p / k.top_k } else { i };
            x[p * inputs..][..inputs]
                .copy_from_slice(&crate::testing::wide(&stored[from * inputs..][..inputs]));
        }
        // Not read without `Weighted`: NaN would show.
        let weights: Vec<f32> = (0..pairs)
            .map(|_| if scatter == Scatter::Weighted { 0.5 + 0.5 * random.unit() } else { f32::NAN })
            .collect();
        let most = most_tiles(k, &ids);
        let builder = builder.input(&stored).ids(&order).ids(&tiles).input(&weights);
        let builder = if most { builder } else { builder.touches_less() };
        Rows { builder, ids, order, scatter, weights, x }
    }

    /// What is stored of products by pair, and how far off it may be.
    pub(super) fn stored(
        &self,
        b: crate::testing::Bounds,
        outputs: usize,
        products: &[(f64, f64)],
    ) -> (Vec<f64>, Vec<f64>) {
        let pair = |place: usize| match self.scatter {
            Scatter::None => self.order[place] as usize,
            Scatter::Pairs | Scatter::Weighted => place,
        };
        let element = |i: usize| {
            let p = pair(i / outputs);
            let (value, error) = products[p * outputs + i % outputs];
            let weight = if self.scatter == Scatter::Weighted { f64::from(self.weights[p]) } else { 1.0 };
            let value = weight * value;
            (value, b.fine().store(value, weight.abs() * error + value.abs() * b.f32()))
        };
        (0..products.len()).map(element).unzip()
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GroupedMatmul {
    /// An expert's rows on both sides of each height, outputs of each width of a simdgroup and a threadgroup, all formats, true
    /// widths.
    fn gpu_cases() -> Vec<Self> {
        let mut cases = GroupedMatmul::cases();
        let case = |rows, outputs, inputs, (bits, group), largest| GroupedMatmul {
            rows,
            experts: 1,
            top_k: 1,
            outputs,
            inputs,
            format: QuantFormat { bits, group },
            heights: TileHeights { largest },
            gather: rows % 2 == 0,
            scatter: [Scatter::None, Scatter::Pairs, Scatter::Weighted][rows % 3],
        };
        for (rows, outputs, largest) in [
            (1, 32, 64),
            (15, 33, 32),
            (16, 128, 64),
            (17, 129, 64),
            (32, 31, 64),
            (33, 127, 64),
            (64, 1, 64),
            (65, 260, 64),
            (33, 40, 32),
            (20, 8, 16),
        ] {
            cases.push(case(rows, outputs, 64, (4, 32), largest));
        }
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(case(5, 40, 128, (bits, group), 64));
            }
        }
        cases.push(GroupedMatmul { experts: 4, top_k: 2, ..case(37, 80, 2048, (4, 64), 64) });
        cases.push(GroupedMatmul { experts: 4, top_k: 4, ..case(41, 140, 512, (4, 64), 64) });
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{product, with_matrix};
        use crate::quant::Method;
        use crate::testing::{Bounds, CaseBuilder, Matrix};
        let (b, outputs) = (Bounds::new(activation), self.outputs);
        let builder = CaseBuilder::new(*self, activation);
        let rows = Rows::new(builder, self.grouping(), self.inputs, (self.gather, self.scatter), random);
        let matrix = Matrix::random(random, self.experts * outputs, self.inputs, self.format);
        let values = self.reference(&rows.x, &rows.ids, matrix.tensors());
        let mut products = Vec::with_capacity(values.len());
        for (p, x) in rows.x.chunks(self.inputs).enumerate() {
            for o in 0..outputs {
                let row = rows.ids[p] as usize * outputs + o;
                products.push((values[p * outputs + o], product(b, &matrix, Method::Tiles, row, x).1));
            }
        }
        let (want, error) = rows.stored(b, outputs, &products);
        with_matrix(rows.builder, &matrix).output(want, error).build()
    }
}
