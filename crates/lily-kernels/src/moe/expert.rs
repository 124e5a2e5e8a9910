//! The experts' products, grouped: each expert's matrix meets all of its rows at once.

use crate::quant::{Matmul, Quantized, Swiglu};
use crate::{Operand, QuantFormat};

/// For each pair p = (row, slot) of expert e: `out[p] = SiLU(gate_e x_row) * (up_e x_row)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertSwiglu {
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
}

/// For each pair p of expert e: `out[p] = down_e act[p]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertDown {
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
}

/// Bytes of expert `e` in a stack of quantized matrices `[experts, outputs, inputs]`.
fn expert(q: Quantized<'_>, e: u32, outputs: usize, inputs: usize, f: QuantFormat) -> Quantized<'_> {
    let part = |b, bytes| crop(b, e as usize * outputs * bytes, outputs * bytes);
    (part(q.0, f.row_bytes(inputs)), part(q.1, f.scale_bytes(inputs)), part(q.2, f.scale_bytes(inputs)))
}

fn crop(bytes: &[u8], at: usize, len: usize) -> &[u8] {
    &bytes[at..at + len]
}

impl ExpertSwiglu {
    /// x f32 [rows, inputs]; offsets, order, active as [`super::Group`] made them; gate and up [experts, outputs,
    /// inputs]; out f32 `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("offsets"),
        Operand::read("order"),
        Operand::read("active"),
        Operand::read("gate.weight"),
        Operand::read("gate.scales"),
        Operand::read("gate.biases"),
        Operand::read("up.weight"),
        Operand::read("up.scales"),
        Operand::read("up.biases"),
        Operand::write("out"),
    ];

    /// The definition, in f64, from the experts' ids `[rows, top_k]`.
    pub fn reference(&self, x: &[f64], ids: &[u32], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        let one =
            Swiglu { rows: 1, outputs: self.outputs, inputs: self.inputs, gate: self.gate, up: self.up };
        let pair = |(p, e): (usize, &u32)| {
            let x = &x[p / self.top_k * self.inputs..][..self.inputs];
            let gate = expert(gate, *e, self.outputs, self.inputs, self.gate);
            one.reference(x, gate, expert(up, *e, self.outputs, self.inputs, self.up))
        };
        ids.iter().enumerate().flat_map(pair).collect()
    }

    /// One row; every row; experts without rows, and with more than 48; outputs on both sides of a block of 32.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in [(f(4, 64), f(4, 64)), (f(3, 32), f(8, 128))] {
            for (rows, experts, top_k, outputs) in [
                (1, 16, 4, 19),
                (9, 3, 2, 40),
                (30, 8, 2, 31),
                (49, 2, 1, 33),
                (50, 3, 3, 8),
                (100, 64, 2, 5),
                (2, 1, 1, 100),
            ] {
                cases.push(ExpertSwiglu { rows, experts, top_k, outputs, inputs: 128, gate, up });
            }
        }
        cases
    }
}

impl ExpertDown {
    /// act f32 [rows * top_k, inputs]; offsets, order, active as [`super::Group`] made them; weight, scales, biases
    /// `[experts, outputs, inputs]`; out f32 `[rows * top_k, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("act"),
        Operand::read("offsets"),
        Operand::read("order"),
        Operand::read("active"),
        Operand::read("weight"),
        Operand::read("scales"),
        Operand::read("biases"),
        Operand::write("out"),
    ];

    /// The definition, in f64, from the experts' ids `[rows, top_k]`.
    pub fn reference(&self, act: &[f64], ids: &[u32], down: Quantized<'_>) -> Vec<f64> {
        let (outputs, inputs, format) = (self.outputs, self.inputs, self.format);
        let one = Matmul { rows: 1, outputs, inputs, format, accumulate: false };
        let pair = |(p, e): (usize, &u32)| {
            let (w, s, b) = expert(down, *e, outputs, inputs, format);
            one.reference(&act[p * inputs..][..inputs], w, s, b, &[])
        };
        ids.iter().enumerate().flat_map(pair).collect()
    }

    /// The same shapes as [`ExpertSwiglu`], the other way round.
    pub fn cases() -> Vec<Self> {
        let case = |s: ExpertSwiglu| ExpertDown {
            rows: s.rows,
            experts: s.experts,
            top_k: s.top_k,
            outputs: s.outputs,
            inputs: s.inputs,
            format: s.gate,
        };
        ExpertSwiglu::cases().into_iter().map(case).collect()
    }
}
