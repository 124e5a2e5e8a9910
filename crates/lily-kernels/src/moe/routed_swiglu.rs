//! Norm, choice of experts and the experts' first half, for few rows.

use super::expert::ExpertSwiglu;
use super::route::Route;
use crate::norm::normed;
use crate::quant::Quantized;
use crate::{Activation, Contract, Operand, PlainType, QuantFormat, Traffic};

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
    /// Experts each row uses.
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
        Operand::write("out").act(),
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
}
