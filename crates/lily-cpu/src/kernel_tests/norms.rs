//! The norms.

use lily_kernels::norm::{GatedNorm, RmsNorm};
use lily_kernels::random::Random;

use super::compare::*;
use super::operands::Operands;
use super::plain;

pub(super) fn rms_norm(k: &RmsNorm, random: &mut Random, worst: &mut Worst) {
    let x = random.values(k.rows * k.width, 1.0);
    let (w, w_values) = plain(random, k.weight, k.width, 1.0, 0.5);
    let relative = norm_error(k.width) + 2.0 * U;
    let want: Vec<Want> = k
        .reference(&wide(&x), &w_values)
        .into_iter()
        .map(|value| Want { value, error: relative * value.abs() })
        .collect();
    let operands = Operands::default().f32(&x).tensor(&w).out(x.len());
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(2), &want));
}

pub(super) fn gated_norm(k: &GatedNorm, random: &mut Random, worst: &mut Worst) {
    let len = k.rows * k.heads * k.width;
    let (y, mut z) = (random.values(len, 1.0), random.values(len, 6.0));
    // gates that are closed and open altogether
    z[0] = -200.0;
    z[len - 1] = 200.0;
    let (w, w_values) = plain(random, k.weight, k.width, 1.0, 0.5);
    let relative = norm_error(k.width) + GATE_ERROR + 3.0 * U;
    let want: Vec<Want> = k
        .reference(&wide(&y), &wide(&z), &w_values)
        .into_iter()
        .map(|value| Want { value, error: relative * value.abs() })
        .collect();
    let operands = Operands::default().f32(&y).f32(&z).tensor(&w).out(len);
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(3), &want));
}
