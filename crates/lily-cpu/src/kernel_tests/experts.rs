//! The experts and their sum.

use lily_kernels::QuantFormat;
use lily_kernels::moe::{Combine, ExpertDown, ExpertSwiglu, Group};
use lily_kernels::random::{QuantizedBytes, Random};

use super::compare::*;
use super::operands::Operands;
use super::quant::{gated, precisions, product};
use super::routing::choices;

impl Operands {
    /// offsets, order and active experts.
    fn grouping(self, rows: usize, experts: usize, top_k: usize, ids: &[u32]) -> Self {
        let grouping = Group { rows, experts, top_k }.reference(ids);
        let used = 1 + grouping.active[0] as usize;
        // What stands behind the active experts is not defined: an id that nothing may use.
        let active: Vec<u32> =
            grouping.active.iter().enumerate().map(|(i, e)| if i < used { *e } else { u32::MAX }).collect();
        self.u32(&grouping.offsets).u32(&grouping.order).u32(&active)
    }
}

/// A random stack of matrices.
fn stack(random: &mut Random, experts: usize, rows: usize, cols: usize, f: QuantFormat) -> QuantizedBytes {
    random.quantized(experts * rows, cols, f)
}

pub(super) fn swiglu(k: &ExpertSwiglu, random: &mut Random, worst: &mut Worst) {
    let gate = stack(random, k.experts, k.outputs, k.inputs, k.gate);
    let up = stack(random, k.experts, k.outputs, k.inputs, k.up);
    let x = random.values(k.rows * k.inputs, 3.0);
    for ids in choices(random, k.rows, k.experts, k.top_k) {
        let bytes = |q: &QuantizedBytes| (q.weight.clone(), q.scales.clone(), q.biases.clone());
        let (g, u) = (bytes(&gate), bytes(&up));
        let values = k.reference(&wide(&x), &ids, (&g.0, &g.1, &g.2), (&u.0, &u.1, &u.2));
        for precision in precisions(&(*k).into()) {
            let mut want = Vec::new();
            for (p, e) in ids.iter().enumerate() {
                let x = wide(&x[p / k.top_k * k.inputs..][..k.inputs]);
                for o in 0..k.outputs {
                    let of = |format, q| product(*precision, format, q, *e as usize * k.outputs + o, &x);
                    let error = gated(of(k.gate, &gate), of(k.up, &up)).error;
                    want.push(Want { value: values[p * k.outputs + o], error });
                }
            }
            let operands = Operands::default().f32(&x).grouping(k.rows, k.experts, k.top_k, &ids);
            let operands = operands.matrix(&gate).matrix(&up).out(want.len());
            let check = |after: &Operands| worst.check(k, &after.got_f32(10), &want);
            operands.run_everywhere_as(*precision, &(*k).into(), check);
        }
    }
}

pub(super) fn down(k: &ExpertDown, random: &mut Random, worst: &mut Worst) {
    let q = stack(random, k.experts, k.outputs, k.inputs, k.format);
    let act = random.values(k.rows * k.top_k * k.inputs, 1.0);
    for ids in choices(random, k.rows, k.experts, k.top_k) {
        let values = k.reference(&wide(&act), &ids, (&q.weight, &q.scales, &q.biases));
        for precision in precisions(&(*k).into()) {
            let mut want = Vec::new();
            for (p, e) in ids.iter().enumerate() {
                let x = wide(&act[p * k.inputs..][..k.inputs]);
                for o in 0..k.outputs {
                    let row = *e as usize * k.outputs + o;
                    let error = product(*precision, k.format, &q, row, &x).error;
                    want.push(Want { value: values[p * k.outputs + o], error });
                }
            }
            let operands = Operands::default().f32(&act).grouping(k.rows, k.experts, k.top_k, &ids);
            let operands = operands.matrix(&q).out(want.len());
            let check = |after: &Operands| worst.check(k, &after.got_f32(7), &want);
            operands.run_everywhere_as(*precision, &(*k).into(), check);
        }
    }
}

pub(super) fn combine(k: &Combine, random: &mut Random, worst: &mut Worst) {
    let out = random.values(k.rows * k.top_k * k.width, 1.0);
    let weights: Vec<f32> = (0..k.rows * k.top_k).map(|_| 0.5 + 0.5 * random.unit()).collect();
    let (shared, x) = (random.values(k.rows * k.width, 1.0), random.values(k.rows * k.width, 2.0));
    let gate = random.values(k.rows, 4.0);
    let values = k.reference(&wide(&out), &wide(&weights), &wide(&shared), &wide(&gate), &wide(&x));
    let absolute = |v: &[f32]| v.iter().map(|v| f64::from(v.abs())).collect::<Vec<f64>>();
    // the same sum of absolute values: every term is positive
    let sizes =
        k.reference(&absolute(&out), &wide(&weights), &absolute(&shared), &wide(&gate), &absolute(&x));
    // top_k + 2 terms one after the other, of which the shared expert's carries the error of its gate
    let error = (k.top_k as f64 + 2.0) * U + GATE_ERROR;
    let want: Vec<Want> =
        values.into_iter().zip(sizes).map(|(value, size)| Want { value, error: error * size }).collect();
    let operands = Operands::default().f32(&out).f32(&weights).f32(&shared).f32(&gate).f32(&x);
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(4), &want));
}
