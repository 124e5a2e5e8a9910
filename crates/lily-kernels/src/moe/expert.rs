//! The experts' products, grouped: each expert's matrix meets all of its rows at once.

use crate::quant::{Matmul, Method, Output, Quantized, Swiglu};
use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

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
        Operand::read("x").fine(),
        Operand::read("offsets").u32(),
        Operand::read("order").u32(),
        Operand::read("active").u32(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// The definition, in f64, from the experts' ids `[rows, top_k]`.
    pub fn reference(&self, x: &[f64], ids: &[u32], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        let &ExpertSwiglu { outputs, inputs, gate: g, up: u, .. } = self;
        let one = Swiglu { rows: 1, outputs, inputs, gate: g, up: u, method: Method::Tiles };
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
        Operand::read("act").fine(),
        Operand::read("offsets").u32(),
        Operand::read("order").u32(),
        Operand::read("active").u32(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// The definition, in f64, from the experts' ids `[rows, top_k]`.
    pub fn reference(&self, act: &[f64], ids: &[u32], down: Quantized<'_>) -> Vec<f64> {
        let (outputs, inputs, format) = (self.outputs, self.inputs, self.format);
        let one = Matmul::new(1, outputs, inputs, format, Output::Activation);
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

impl Contract for ExpertSwiglu {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        let active = self.experts.min(pairs);
        let mut all = vec![
            Traffic::read(size * self.rows * self.inputs),
            Traffic::read(4 * (self.experts + 1)),
            Traffic::read(4 * pairs),
            Traffic::read(4 * (1 + active)),
        ];
        all.extend(self.gate.reads(active * self.outputs, self.inputs));
        all.extend(self.up.reads(active * self.outputs, self.inputs));
        all.push(Traffic::written(size * pairs * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        crate::product(&[4, self.rows, self.top_k, self.outputs, self.inputs])
    }
}

impl Contract for ExpertDown {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        let active = self.experts.min(pairs);
        let mut all = vec![
            Traffic::read(size * pairs * self.inputs),
            Traffic::read(4 * (self.experts + 1)),
            Traffic::read(4 * pairs),
            Traffic::read(4 * (1 + active)),
        ];
        all.extend(self.format.reads(active * self.outputs, self.inputs));
        all.push(Traffic::written(size * pairs * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        crate::product(&[2, self.rows, self.top_k, self.outputs, self.inputs])
    }
}
