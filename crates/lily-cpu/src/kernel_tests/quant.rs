//! The embedding and products with quantized matrices.

use lily_kernels::QuantFormat;
use lily_kernels::quant::{Embed, Matmul, Output, Swiglu};
use lily_kernels::random::{QuantizedBytes, Random};

use super::compare::*;
use super::operands::Operands;

impl Operands {
    /// Weight, scales and biases of a matrix or a stack.
    pub(super) fn matrix(self, q: &QuantizedBytes) -> Self {
        self.tensor(&q.weight).tensor(&q.scales).tensor(&q.biases)
    }
}

/// A matrix row with what f32 may make of its product with `x`: each weight is rounded once before its product is.
pub(super) fn product(format: QuantFormat, q: &QuantizedBytes, row: usize, x: &[f64]) -> Want {
    let w = format.dequantize_row(&q.weight, &q.scales, &q.biases, row, x.len());
    Want { value: dot(x, &w), error: (sum_error(x.len()) + 2.0 * U) * magnitude(x, &w) }
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
    let mut want = Vec::new();
    for (r, x) in wide(&x).chunks(k.inputs).enumerate() {
        for o in 0..k.outputs() {
            let value = values[r * k.outputs() + o];
            let add = if k.out == Output::Add { U * value.abs() } else { 0.0 };
            want.push(Want { value, error: product(k.format, &q, o, x).error + add });
        }
    }
    let operands = Operands::default().f32(&x).matrix(&q);
    let operands = if k.out == Output::Add { operands.f32(&old) } else { operands.out(old.len()) };
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(4), &want));
}

pub(super) fn swiglu(k: &Swiglu, random: &mut Random, worst: &mut Worst) {
    let gate = random.quantized(k.outputs, k.inputs, k.gate);
    let up = random.quantized(k.outputs, k.inputs, k.up);
    // some gates closed and some open altogether
    let x = random.values(k.rows * k.inputs, 8.0);
    let parts = |q: &QuantizedBytes| (q.weight.clone(), q.scales.clone(), q.biases.clone());
    let (g, u) = (parts(&gate), parts(&up));
    let values = k.reference(&wide(&x), (&g.0, &g.1, &g.2), (&u.0, &u.1, &u.2));
    let mut want = Vec::new();
    for (r, x) in wide(&x).chunks(k.inputs).enumerate() {
        for o in 0..k.outputs {
            let error = gated(product(k.gate, &gate, o, x), product(k.up, &up, o, x)).error;
            want.push(Want { value: values[r * k.outputs + o], error });
        }
    }
    let operands = Operands::default().f32(&x).matrix(&gate).matrix(&up).out(want.len());
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(7), &want));
}
