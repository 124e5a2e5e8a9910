//! The experts' second half, the shared expert's, and their weighted sum into the residual, for few rows.

use super::combine::Combine;
use super::expert::ExpertDown;
use super::route::Route;
use crate::quant::{Matmul, Output, Quantized};
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// For each row, of the experts e that [`Route`] chooses and their weights: `out[row] += sum over slots of weight *
/// (down_e act[p]) + sigmoid(shared_gate[row]) * (shared shared_act[row])`, in the order of [`Combine`]. One to four rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DownCombine {
    /// Rows.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses.
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
        Operand::read("act").act(),
        Operand::read("logits"),
        Operand::read("shared_act").act(),
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
}
