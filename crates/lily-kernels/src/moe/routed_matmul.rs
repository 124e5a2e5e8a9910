//! A product with the chosen experts' matrices, for few rows.

use super::expert::ExpertDown;
use crate::bindings::routed_matmul;
use crate::quant::Quantized;
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

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
        Operand::read("x").fine(),
        Operand::read("ids").u32(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").fine(),
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
        crate::product(&[2, self.rows, self.top_k, self.outputs, self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants =
            routed_matmul::Constants { bits: self.format.bits as u32, group: self.format.group as u32 };
        let params = routed_matmul::Params {
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            pairs_per_x: if self.gather { self.top_k as u32 } else { 1 },
        };
        let simdgroups = self.outputs.div_ceil(4).min(4);
        let grid = [self.outputs.div_ceil(4 * simdgroups), self.rows * self.top_k, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&routed_matmul::TEXT, constants, params, grid, [32 * simdgroups, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for RoutedMatmul {
    /// Every format, true widths.
    fn gpu_cases() -> Vec<Self> {
        let mut cases = RoutedMatmul::cases();
        for k in <super::RoutedSwiglu as crate::testing::GpuCases>::gpu_cases() {
            let RoutedMatmul { rows, experts, top_k, outputs, inputs, format, .. } = RoutedMatmul {
                rows: k.rows,
                experts: k.experts,
                top_k: k.top_k,
                outputs: k.outputs,
                inputs: k.inputs,
                format: k.gate,
                gather: false,
            };
            let case =
                RoutedMatmul { rows, experts, top_k, outputs, inputs, format, gather: format.group != 64 };
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Choice, choose, most_experts, product, with_matrix};
        use crate::quant::Method;
        use crate::testing::{Bounds, CaseBuilder, Matrix, wide};
        let b = Bounds::new(activation);
        let RoutedMatmul { rows, experts, top_k, outputs, inputs, .. } = *self;
        let builder = CaseBuilder::new(*self, activation);
        let pairs_per_x = if self.gather { top_k } else { 1 };
        let stored = builder.rounded(&random.values(rows * top_k / pairs_per_x * inputs, 1.0));
        let x: Vec<f64> =
            (0..rows * top_k).flat_map(|p| wide(&stored[p / pairs_per_x * inputs..][..inputs])).collect();
        let ids = choose(random, rows, experts, top_k, Choice::of(rows, experts, top_k));
        let matrix = Matrix::random(random, experts * outputs, inputs, self.format);
        let want = self.reference(&x, &ids, matrix.tensors());
        let mut error = Vec::with_capacity(want.len());
        for (p, x) in x.chunks(inputs).enumerate() {
            for o in 0..outputs {
                let row = ids[p] as usize * outputs + o;
                error
                    .push(b.fine().store(want[p * outputs + o], product(b, &matrix, Method::Rows, row, x).1));
            }
        }
        let builder = with_matrix(builder.input(&stored).ids(&ids), &matrix).output(want, error);
        if most_experts(&ids, experts) { builder } else { builder.touches_less() }.build()
    }
}
