//! Norm, choice of experts and the experts' first half, for few rows.

use super::MOST_CHOSEN;
use super::expert::ExpertSwiglu;
use super::route::Route;
use crate::bindings::routed_swiglu;
use crate::norm::normed;
use crate::quant::Quantized;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, QuantFormat, Traffic};

/// For each pair p = (row, slot), of the expert e that [`Route`] puts into this slot: with `n = RMSNorm(x_row) * norm`,
/// `out[p] = SiLU(gate_e n) * (up_e n)`. One to four rows.
///
/// Norm and choice are small: each threadgroup makes them again, so that no launch has to come before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedSwiglu {
    /// Rows of x.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses: at most [`MOST_CHOSEN`].
    pub top_k: usize,
    /// Rows of each expert's matrices.
    pub outputs: usize,
    /// Columns of each expert's matrices.
    pub inputs: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the gate matrices.
    pub gate: QuantFormat,
    /// Of the up matrices.
    pub up: QuantFormat,
}

impl RoutedSwiglu {
    /// x f32 `[rows, inputs]`; norm `[inputs]`; logits f32 `[rows, experts]`; gate and up `[experts, outputs, inputs]`; out
    /// activations `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("norm").tensor(),
        Operand::read("logits"),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// The choice that it makes.
    pub fn route(&self) -> Route {
        Route { rows: self.rows, experts: self.experts, top_k: self.top_k }
    }

    /// The normed rows, in f64.
    pub fn normed(&self, x: &[f64], norm: &[f64]) -> Vec<f64> {
        x.chunks(self.inputs).flat_map(|row| normed(row, norm, f64::from(self.eps))).collect()
    }

    /// The definition, in f64.
    pub fn reference(
        &self,
        x: &[f64],
        norm: &[f64],
        logits: &[f64],
        gate: Quantized<'_>,
        up: Quantized<'_>,
    ) -> Vec<f64> {
        let RoutedSwiglu { rows, experts, top_k, outputs, inputs, .. } = *self;
        let (ids, _) = self.route().reference(logits);
        ExpertSwiglu { rows, experts, top_k, outputs, inputs, gate: self.gate, up: self.up }.reference(
            &self.normed(x, norm),
            &ids,
            gate,
            up,
        )
    }

    /// One to four rows, both types of norm, two formats, the experts of fixtures and of the true model.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up, norm) in [(f(4, 64), f(4, 64), PlainType::Bf16), (f(3, 32), f(8, 128), PlainType::F32)]
        {
            for (rows, experts, top_k, outputs) in
                [(1, 256, 8, 19), (2, 16, 4, 40), (4, 6, 2, 3), (3, 40, 1, 33)]
            {
                let eps = if rows == 2 { 0.3 } else { 1e-6 };
                cases.push(RoutedSwiglu { rows, experts, top_k, outputs, inputs: 256, eps, norm, gate, up });
            }
        }
        cases
    }
}

impl Contract for RoutedSwiglu {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let pairs = self.rows * self.top_k;
        let active = self.experts.min(pairs);
        let mut all = vec![
            Traffic::read(4 * self.rows * self.inputs),
            Traffic::read(self.inputs * self.norm.bytes()),
            Traffic::read(4 * self.rows * self.experts),
        ];
        all.extend(self.gate.reads(active * self.outputs, self.inputs));
        all.extend(self.up.reads(active * self.outputs, self.inputs));
        all.push(Traffic::written(activation.bytes() * pairs * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        let norm = 4 * self.rows * self.inputs;
        (norm + 4 * self.rows * self.top_k * self.outputs * self.inputs) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        if self.top_k > MOST_CHOSEN {
            return None;
        }
        let constants = routed_swiglu::Constants {
            gate_bits: self.gate.bits as u32,
            gate_group: self.gate.group as u32,
            up_bits: self.up.bits as u32,
            up_group: self.up.group as u32,
            norm_is_f32: self.norm == PlainType::F32,
        };
        let params = routed_swiglu::Params {
            experts: self.experts as u32,
            top_k: self.top_k as u32,
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            eps: self.eps,
        };
        let simdgroups = self.outputs.div_ceil(4).min(4);
        let grid = [self.outputs.div_ceil(4 * simdgroups), self.rows * self.top_k, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&routed_swiglu::TEXT, constants, params, grid, [32 * simdgroups, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for RoutedSwiglu {
    /// Every format, true widths, more experts than a lane holds.
    fn gpu_cases() -> Vec<Self> {
        let mut cases = RoutedSwiglu::cases();
        let case = |rows, experts, top_k, outputs, inputs, (bits, group)| {
            let format = QuantFormat { bits, group };
            let (eps, norm, gate, up) = (1e-6, PlainType::Bf16, format, format);
            RoutedSwiglu { rows, experts, top_k, outputs, inputs, eps, norm, gate, up }
        };
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(case(1 + bits % 4, 7, 2, 6, 384, (bits, group)));
            }
        }
        cases.push(case(2, 8, 4, 20, 2048, (4, 64)));
        cases.push(case(1, 300, 10, 2, 64, (4, 64)));
        cases.push(case(4, 32, 8, 16, 128, (8, 64)));
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Choice, choose, gated_error, logits_for, most_experts, product, with_matrix};
        use crate::quant::Method;
        use crate::testing::{Bounds, CaseBuilder, Matrix, magnitude, plain, wide};
        let b = Bounds::new(activation);
        let RoutedSwiglu { rows, experts, top_k, outputs, inputs, .. } = *self;
        let x = random.values(rows * inputs, 2.0);
        let (norm, norm_values) = plain(random, self.norm, inputs, 1.0, 0.5);
        let ids = choose(random, rows, experts, top_k, Choice::of(rows, experts, top_k));
        let logits = logits_for(random, experts, top_k, &ids);
        let gate = Matrix::random(random, experts * outputs, inputs, self.gate);
        let up = Matrix::random(random, experts * outputs, inputs, self.up);
        let want = self.reference(&wide(&x), &norm_values, &wide(&logits), gate.tensors(), up.tensors());
        let n = self.normed(&wide(&x), &norm_values);
        let mut error = Vec::with_capacity(want.len());
        for (p, id) in ids.iter().enumerate() {
            let n = &n[p / top_k * inputs..][..inputs];
            for o in 0..outputs {
                let row = *id as usize * outputs + o;
                // x times the norm's weight is rounded before the product, the norm's factor and its product after it.
                let of = |matrix: &Matrix| {
                    let (value, error) = product(b, matrix, Method::Rows, row, n);
                    let factor = 0.5 * b.sum(inputs, 32) + b.function() + 3.0 * b.f32();
                    (value, error + 2.0 * b.f32() * magnitude(n, matrix.terms(row)) + value.abs() * factor)
                };
                error.push(b.fine().store(want[p * outputs + o], gated_error(b, of(&gate), of(&up))));
            }
        }
        let builder = CaseBuilder::new(*self, activation).input(&x).tensor(&norm).input(&logits);
        let builder = with_matrix(with_matrix(builder, &gate), &up).output(want, error);
        if most_experts(&ids, experts) { builder } else { builder.touches_less() }.build()
    }
}
