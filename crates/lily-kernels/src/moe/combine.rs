//! The weighted sum of experts, the shared expert, and the residual.

use crate::quant::sigmoid;
use crate::{Activation, Contract, Operand, Traffic};

/// `x[r] += sum over slots j of weights[r, j] * expert_out[r * top_k + j] + sigmoid(shared_gate[r]) * shared[r]`.
///
/// Slots are summed in slot order, the shared expert last, then the sum is added to the residual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Combine {
    /// Rows.
    pub rows: usize,
    /// Experts each row uses.
    pub top_k: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Multiplies by the weights; otherwise `expert_out` already carries them, and they are not read.
    pub weighted: bool,
}

impl Combine {
    /// expert_out activations `[rows * top_k, width]`; weights f32 `[rows, top_k]`; shared activations `[rows, width]`;
    /// shared_gate f32 `[rows]`; x f32 `[rows, width]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("expert_out").act(),
        Operand::read("weights"),
        Operand::read("shared").act(),
        Operand::read("shared_gate"),
        Operand::update("x"),
    ];

    /// The definition, in f64.
    pub fn reference(
        &self,
        expert_out: &[f64],
        weights: &[f64],
        shared: &[f64],
        shared_gate: &[f64],
        x: &[f64],
    ) -> Vec<f64> {
        let mut y = x.to_vec();
        for r in 0..self.rows {
            for i in 0..self.width {
                for j in 0..self.top_k {
                    let p = r * self.top_k + j;
                    let weight = if self.weighted { weights[p] } else { 1.0 };
                    y[r * self.width + i] += weight * expert_out[p * self.width + i];
                }
                y[r * self.width + i] += sigmoid(shared_gate[r]) * shared[r * self.width + i];
            }
        }
        y
    }

    /// Widths that do and do not fill a vector.
    pub fn cases() -> Vec<Self> {
        let case = |rows, top_k, width| Combine { rows, top_k, width, weighted: true };
        vec![case(1, 8, 256), case(5, 2, 37), case(3, 1, 64), case(2, 4, 7)]
    }
}

impl Contract for Combine {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        vec![
            Traffic::read(size * pairs * self.width),
            Traffic::read(if self.weighted { 4 * pairs } else { 0 }),
            Traffic::read(size * self.rows * self.width),
            Traffic::read(4 * self.rows),
            Traffic::updated(4 * self.rows * self.width),
        ]
    }

    fn flops(&self) -> u64 {
        (2 * self.rows * (self.top_k + 1) * self.width) as u64
    }
}
