//! The experts' second half, the shared expert's, and their weighted sum into the residual, for few rows.

use super::MOST_CHOSEN;
use super::combine::Combine;
use super::expert::ExpertDown;
use super::route::Route;
use crate::bindings::down_combine;
use crate::quant::{Matmul, Output, Quantized};
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

/// For each row, of the experts e that [`Route`] chooses and their weights: `out[row] += sum over slots of weight *
/// (down_e act[p]) + sigmoid(shared_gate[row]) * (shared shared_act[row])`, in the order of [`Combine`]. One to four rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DownCombine {
    /// Rows.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses: at most [`MOST_CHOSEN`].
    pub top_k: usize,
    /// Width of the residual stream.
    pub outputs: usize,
    /// Columns of each expert's matrix.
    pub inputs: usize,
    /// Columns of the shared expert's matrix.
    pub shared_inputs: usize,
    /// Of the experts' matrices.
    pub format: QuantFormat,
    /// Of the shared expert's matrix.
    pub shared_format: QuantFormat,
}

impl DownCombine {
    /// act activations `[rows * top_k, inputs]`; logits f32 `[rows, experts]`; shared_act activations `[rows, shared_inputs]`;
    /// shared_gate f32 `[rows]`, before the sigmoid; down `[experts, outputs, inputs]`; shared `[outputs, shared_inputs]`; out
    /// f32 `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("act").fine(),
        Operand::read("logits"),
        Operand::read("shared_act").fine(),
        Operand::read("shared_gate"),
        Operand::read("down.weight").tensor(),
        Operand::read("down.scales").tensor(),
        Operand::read("down.biases").tensor(),
        Operand::read("shared.weight").tensor(),
        Operand::read("shared.scales").tensor(),
        Operand::read("shared.biases").tensor(),
        Operand::update("out"),
    ];

    /// The choice that it makes.
    pub fn route(&self) -> Route {
        Route { rows: self.rows, experts: self.experts, top_k: self.top_k }
    }

    /// The experts' products by pair, and the shared expert's by row, in f64.
    pub fn products(
        &self,
        act: &[f64],
        ids: &[u32],
        shared_act: &[f64],
        down: Quantized<'_>,
        shared: Quantized<'_>,
    ) -> (Vec<f64>, Vec<f64>) {
        let DownCombine { rows, experts, top_k, outputs, inputs, format, .. } = *self;
        let down = ExpertDown { rows, experts, top_k, outputs, inputs, format }.reference(act, ids, down);
        let one = Matmul::new(rows, outputs, self.shared_inputs, self.shared_format, Output::Activation);
        (down, one.reference(shared_act, shared.0, shared.1, shared.2, &[]))
    }

    /// The sum that it makes, of products in memory.
    pub fn combine(&self) -> Combine {
        Combine { rows: self.rows, top_k: self.top_k, width: self.outputs, weighted: true }
    }

    /// One to four rows, equal and unequal formats and widths of the shared expert.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (format, shared_format) in [(f(4, 64), f(4, 64)), (f(3, 32), f(8, 128))] {
            for (rows, experts, top_k, outputs, inputs) in
                [(1, 256, 8, 19, 512), (2, 16, 4, 40, 128), (4, 6, 2, 3, 128), (3, 40, 1, 33, 256)]
            {
                let shared_inputs = if rows == 3 { 128 } else { inputs };
                cases.push(DownCombine {
                    rows,
                    experts,
                    top_k,
                    outputs,
                    inputs,
                    shared_inputs,
                    format,
                    shared_format,
                });
            }
        }
        cases
    }
}

impl Contract for DownCombine {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        let mut all = vec![
            Traffic::read(size * pairs * self.inputs),
            Traffic::read(4 * self.rows * self.experts),
            Traffic::read(size * self.rows * self.shared_inputs),
            Traffic::read(4 * self.rows),
        ];
        all.extend(self.format.reads(self.experts.min(pairs) * self.outputs, self.inputs));
        all.extend(self.shared_format.reads(self.outputs, self.shared_inputs));
        all.push(Traffic::updated(4 * self.rows * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        let products = self.top_k * self.inputs + self.shared_inputs;
        (2 * self.rows * self.outputs * (products + self.top_k + 1)) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        if self.top_k > MOST_CHOSEN {
            return None;
        }
        let constants = down_combine::Constants {
            bits: self.format.bits as u32,
            group: self.format.group as u32,
            shared_bits: self.shared_format.bits as u32,
            shared_group: self.shared_format.group as u32,
        };
        let params = down_combine::Params {
            experts: self.experts as u32,
            top_k: self.top_k as u32,
            outputs: self.outputs as u32,
            inputs: self.inputs as u32,
            shared_inputs: self.shared_inputs as u32,
        };
        // One for each expert, as far as threadgroups of every GPU have room.
        let simdgroups = (self.top_k + 1).min(16);
        let grid = [self.outputs.div_ceil(4), self.rows, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&down_combine::TEXT, constants, params, grid, [32 * simdgroups, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for DownCombine {
    /// Every format, true widths, more experts a row than simdgroups.
    fn gpu_cases() -> Vec<Self> {
        let mut cases = DownCombine::cases();
        let case = |rows, experts, top_k, outputs, inputs, (bits, group)| {
            let format = QuantFormat { bits, group };
            let (shared_inputs, shared_format) = (inputs, format);
            DownCombine { rows, experts, top_k, outputs, inputs, shared_inputs, format, shared_format }
        };
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(case(1 + bits % 4, 7, 2, 6, 384, (bits, group)));
            }
        }
        cases.push(case(2, 8, 4, 20, 1024, (4, 64)));
        cases.push(case(1, 300, 10, 2, 64, (4, 64)));
        cases.push(case(2, 40, 20, 5, 64, (4, 64)));
        cases.push(case(1, 33, 32, 4, 64, (8, 64)));
        cases.push(case(4, 32, 8, 16, 512, (4, 64)));
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::combine::sum_error;
        use super::route::weight_error;
        use super::testing::{Choice, choose, logits_for, most_experts, with_matrix};
        use crate::quant::{Method, sigmoid};
        use crate::testing::{Bounds, CaseBuilder, Matrix, wide};
        let b = Bounds::new(activation);
        let DownCombine { rows, experts, top_k, outputs, inputs, shared_inputs, .. } = *self;
        let builder = CaseBuilder::new(*self, activation);
        let act = builder.rounded(&random.values(rows * top_k * inputs, 1.0));
        let builder = builder.input(&act);
        let ids = choose(random, rows, experts, top_k, Choice::of(rows, experts, top_k));
        let logits = logits_for(random, experts, top_k, &ids);
        let builder = builder.input(&logits);
        let shared_act = builder.rounded(&random.values(rows * shared_inputs, 1.0));
        let shared_gate = random.values(rows, 3.0);
        let down = Matrix::random(random, experts * outputs, inputs, self.format);
        let shared = Matrix::random(random, outputs, shared_inputs, self.shared_format);
        let before = random.values(rows * outputs, 2.0);

        let (act, shared_act_wide, gates) = (wide(&act), wide(&shared_act), wide(&shared_gate));
        let (chosen, weights) = self.route().reference(&wide(&logits));
        assert_eq!(chosen, ids);
        let (products, shared_products) =
            self.products(&act, &ids, &shared_act_wide, down.tensors(), shared.tensors());
        let want = self.combine().reference(&products, &weights, &shared_products, &gates, &wide(&before));
        let mut error = Vec::with_capacity(want.len());
        for row in 0..rows {
            let logits = &logits[row * experts..][..experts];
            for o in 0..outputs {
                let (mut off, mut size) = (0.0, f64::from(before[row * outputs + o].abs()));
                for p in row * top_k..(row + 1) * top_k {
                    let below = f64::from(logits[ids[row * top_k] as usize] - logits[ids[p] as usize]);
                    let product = products[p * outputs + o].abs();
                    let of = down.error(
                        b,
                        Method::Rows,
                        ids[p] as usize * outputs + o,
                        &act[p * inputs..][..inputs],
                    );
                    off += weights[p] * of + product * weight_error(b, weights[p], top_k, below);
                    size += weights[p] * product;
                }
                let share = sigmoid(gates[row]);
                off += share
                    * shared.error(
                        b,
                        Method::Rows,
                        o,
                        &shared_act_wide[row * shared_inputs..][..shared_inputs],
                    );
                size += share * shared_products[row * outputs + o].abs();
                error.push(off + size * sum_error(b, top_k));
            }
        }
        let builder =
            with_matrix(with_matrix(builder.input(&shared_act).input(&shared_gate), &down), &shared);
        let builder = builder.update(&before, want, error);
        if most_experts(&ids, experts) { builder } else { builder.touches_less() }.build()
    }
}
