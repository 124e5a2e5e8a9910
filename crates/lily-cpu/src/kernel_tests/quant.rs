//! The embedding and products with quantized matrices.

use lily_kernels::quant::{Embed, Matmul, Output, Swiglu};
use lily_kernels::random::{QuantizedBytes, Random};
use lily_kernels::{Kernel, QuantFormat, bf16_to_f32};

use super::compare::*;
use super::operands::Operands;
use crate::Precision;
use crate::rounded::LARGEST;

impl Operands {
    /// Weight, scales and biases of a matrix or a stack.
    pub(super) fn matrix(self, q: &QuantizedBytes) -> Self {
        self.tensor(&q.weight).tensor(&q.scales).tensor(&q.biases)
    }
}

/// The ways in which activations may enter a kernel.
pub(super) fn precisions(kernel: &Kernel) -> &'static [Precision] {
    match crate::kernels::rounds(kernel, true) {
        Some(_) => &[Precision::Exact, Precision::Fast],
        None => &[Precision::Exact],
    }
}

/// A matrix row with what its product with `x` may be.
pub(super) fn product(
    precision: Precision,
    format: QuantFormat,
    q: &QuantizedBytes,
    row: usize,
    x: &[f64],
) -> Want {
    let w = format.dequantize_row(&q.weight, &q.scales, &q.biases, row, x.len());
    let error = match precision {
        // each weight is rounded once before its product is
        Precision::Exact => (sum_error(x.len()) + 2.0 * U) * magnitude(x, &w),
        Precision::Fast => rounded_error(format, q, row, x, &w),
    };
    Want { value: dot(x, &w), error }
}

/// An input is off by half a step of its group at most, and a little for the step's own roundings. Scale and bias are
/// multiplied apart: sizes are theirs, not those of the weights, and a term sees two roundings a group behind it and some of
/// its own.
fn rounded_error(format: QuantFormat, q: &QuantizedBytes, row: usize, x: &[f64], w: &[f64]) -> f64 {
    let groups = x.len() / format.group;
    let (mut steps, mut size) = (0.0, 0.0);
    for g in 0..groups {
        let part = g * format.group..(g + 1) * format.group;
        let bias = bf16_to_f32(u16::from_le_bytes([0, 1].map(|b| q.biases[2 * (row * groups + g) + b])));
        let step = x[part.clone()].iter().fold(0.0f64, |most, x| most.max(x.abs())) / f64::from(LARGEST);
        for (x, w) in x[part.clone()].iter().zip(&w[part]) {
            steps += (0.5 * step + 3.0 * U * x.abs()) * w.abs();
            size += x.abs() * ((w - f64::from(bias)).abs() + f64::from(bias.abs()));
        }
    }
    steps + 4.0 * (2.0 * groups as f64 + 6.0).sqrt() * U * size
}

/// SiLU(gate) * up of two products. |SiLU'| is below 1.1.
pub(super) fn gated(gate: Want, up: Want) -> Want {
    let silu = gate.value / (1.0 + (-gate.value).exp());
    let value = silu * up.value;
    let of_gate = 1.1 * gate.error * (up.value.abs() + up.error);
    Want { value, error: of_gate + silu.abs() * up.error + (GATE_ERROR + U) * value.abs() }
}

pub(super) fn embed(k: &Embed, random: &mut Random, worst: &mut Worst) {
    let q = random.quantized(k.vocab, k.width, k.format);
    // the first and the last row, and some between
    let mut tokens: Vec<u32> = (0..k.rows).map(|_| random.below(k.vocab) as u32).collect();
    tokens[0] = k.vocab as u32 - 1;
    *tokens.last_mut().unwrap() = if k.rows > 1 { 0 } else { k.vocab as u32 - 1 };
    let want = k.reference(&tokens, &q.weight, &q.scales, &q.biases);
    // one rounding: the nearest f32, and nothing else
    let want: Vec<f32> = want.iter().map(|w| *w as f32).collect();
    let operands = Operands::default().u32(&tokens).matrix(&q).out(want.len());
    operands.run_everywhere(&(*k).into(), |after| worst.check_exact(k, &after.got_f32(4), &want));
}

pub(super) fn matmul(k: &Matmul, random: &mut Random, worst: &mut Worst) {
    let q = random.quantized(k.outputs(), k.inputs, k.format);
    let (x, old) = (random.values(k.rows * k.inputs, 1.0), random.values(k.rows * k.outputs(), 1.0));
    let values = k.reference(&wide(&x), &q.weight, &q.scales, &q.biases, &wide(&old));
    for precision in precisions(&(*k).into()) {
        let mut want = Vec::new();
        for (r, x) in wide(&x).chunks(k.inputs).enumerate() {
            for o in 0..k.outputs() {
                let value = values[r * k.outputs() + o];
                let add = if k.out == Output::Add { U * value.abs() } else { 0.0 };
                want.push(Want { value, error: product(*precision, k.format, &q, o, x).error + add });
            }
        }
        let operands = Operands::default().f32(&x).matrix(&q);
        let operands = if k.out == Output::Add { operands.f32(&old) } else { operands.out(old.len()) };
        let check = |after: &Operands| worst.check(k, &after.got_f32(4), &want);
        operands.run_everywhere_as(*precision, &(*k).into(), check);
    }
}

pub(super) fn swiglu(k: &Swiglu, random: &mut Random, worst: &mut Worst) {
    let gate = random.quantized(k.outputs, k.inputs, k.gate);
    let up = random.quantized(k.outputs, k.inputs, k.up);
    // some gates closed and some open altogether
    let x = random.values(k.rows * k.inputs, 8.0);
    let parts = |q: &QuantizedBytes| (q.weight.clone(), q.scales.clone(), q.biases.clone());
    let (g, u) = (parts(&gate), parts(&up));
    let values = k.reference(&wide(&x), (&g.0, &g.1, &g.2), (&u.0, &u.1, &u.2));
    for precision in precisions(&(*k).into()) {
        let mut want = Vec::new();
        for (r, x) in wide(&x).chunks(k.inputs).enumerate() {
            for o in 0..k.outputs {
                let of = |format, q| product(*precision, format, q, o, x);
                let error = gated(of(k.gate, &gate), of(k.up, &up)).error;
                want.push(Want { value: values[r * k.outputs + o], error });
            }
        }
        let operands = Operands::default().f32(&x).matrix(&gate).matrix(&up).out(want.len());
        let check = |after: &Operands| worst.check(k, &after.got_f32(7), &want);
        operands.run_everywhere_as(*precision, &(*k).into(), check);
    }
}
