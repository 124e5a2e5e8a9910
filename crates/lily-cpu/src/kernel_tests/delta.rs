//! Gated DeltaNet.

use lily_kernels::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan, ScanInputs};
use lily_kernels::random::Random;

use super::compare::*;
use super::operands::Operands;
use super::plain;

pub(super) fn conv_silu(k: &ConvSilu, random: &mut Random, worst: &mut Worst) {
    let (w, w_values) = plain(random, k.weight, k.channels * k.taps, 0.1, 0.6);
    let raw = random.values(k.slots * k.rows * k.channels, 2.0);
    let states: Vec<Vec<f32>> = (0..k.slots).map(|_| random.values((k.taps - 1) * k.channels, 2.0)).collect();
    let mut want = Vec::new();
    for (raw, state) in raw.chunks(k.rows * k.channels).zip(&states) {
        let values = k.reference(&wide(raw), &w_values, &wide(state));
        let rows = wide(&[state, raw].concat());
        for (i, value) in values.into_iter().enumerate() {
            let (t, c) = (i / k.channels, i % k.channels);
            let size: f64 =
                (0..k.taps).map(|j| (w_values[c * k.taps + j] * rows[(t + j) * k.channels + c]).abs()).sum();
            let error = 1.1 * (k.taps as f64 + 1.0) * U * size + GATE_ERROR * value.abs();
            want.push(Want { value, error });
        }
    }
    let mut operands = Operands::default().f32(&raw).tensor(&w).out(raw.len());
    for state in &states {
        operands = operands.f32(state);
    }
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(2), &want));
}

pub(super) fn conv_state(k: &ConvState, random: &mut Random, worst: &mut Worst) {
    let raw = random.values(k.slots * k.rows * k.channels, 2.0);
    let states: Vec<Vec<f32>> = (0..k.slots).map(|_| random.values((k.taps - 1) * k.channels, 2.0)).collect();
    let mut operands = Operands::default().f32(&raw);
    for state in &states {
        operands = operands.f32(state);
    }
    operands.run_everywhere(&(*k).into(), |after| {
        for (slot, (raw, state)) in raw.chunks(k.rows * k.channels).zip(&states).enumerate() {
            worst.check_exact(k, &after.got_f32(1 + slot), &k.reference(raw, state));
        }
    });
}

pub(super) fn prep(k: &DeltaPrep, random: &mut Random, worst: &mut Worst) {
    let mut conv = random.values(k.rows * k.channels(), 1.0);
    // one key head so small that the epsilon decides
    conv[..k.key_dim].iter_mut().for_each(|x| *x *= 1e-4);
    let (mut a, mut b) =
        (random.values(k.rows * k.value_heads, 3.0), random.values(k.rows * k.value_heads, 3.0));
    (a[0], b[0]) = (40.0, -60.0);
    let (a_log, a_log_values) = plain(random, k.a_log, k.value_heads, 0.0, 2.7);
    let (dt_bias, dt_values) = plain(random, k.dt_bias, k.value_heads, -4.0, 2.0);
    let want = k.reference(&wide(&conv), &wide(&a), &wide(&b), &a_log_values, &dt_values);

    let unit = norm_error(k.key_dim) + 2.0 * U;
    let relative = |values: &[f64], error: f64| {
        let want = |value: &f64| Want { value: *value, error: error * value.abs() };
        values.iter().map(want).collect::<Vec<Want>>()
    };
    let heads = want.q.chunks(k.key_dim).zip(want.k.chunks(k.key_dim)).zip(&want.kappa);
    let kappa: Vec<Want> = heads
        .map(|((q, key), value)| Want {
            value: *value,
            error: (2.0 * unit + sum_error(k.key_dim)) * magnitude(q, key),
        })
        .collect();
    let decay: Vec<Want> = want
        .decay
        .iter()
        .enumerate()
        .map(|(i, value)| {
            let h = i % k.value_heads;
            let dt = f64::from(a[i]) + dt_values[h];
            // ln(decay) = -exp(a_log) softplus(dt); rounding dt changes softplus by |dt| U of itself at most, and the
            // functions add a few units each
            let exponent = value.ln().abs().min(200.0);
            Want { value: *value, error: value * ((dt.abs() + 10.0) * exponent + 3.0) * U }
        })
        .collect();
    let operands = Operands::default().f32(&conv).f32(&a).f32(&b).tensor(&a_log).tensor(&dt_bias);
    let operands = operands.out(want.q.len()).out(want.k.len()).out(want.kappa.len());
    let operands = operands.out(want.decay.len()).out(want.beta.len());
    operands.run_everywhere(&(*k).into(), |after| {
        worst.check(k, &after.got_f32(5), &relative(&want.q, unit));
        worst.check(k, &after.got_f32(6), &relative(&want.k, unit));
        worst.check(k, &after.got_f32(7), &kappa);
        worst.check(k, &after.got_f32(8), &decay);
        worst.check(k, &after.got_f32(9), &relative(&want.beta, GATE_ERROR));
    });
}

/// Inputs of a scan as its prep makes them: q and k of unit length (q over the root of its width), gates in 0 to 1.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    kappa: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    conv: Vec<f32>,
}

fn inputs(k: &DeltaScan, random: &mut Random) -> Inputs {
    let (tokens, dk) = (k.slots * k.rows, k.key_dim);
    let mut units = |scale: f64| -> Vec<f32> {
        let values = random.values(tokens * k.key_heads * dk, 1.0);
        let unit = |x: &[f32]| {
            let norm = x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt() + 1e-9;
            x.iter().map(|x| (f64::from(*x) / norm * scale) as f32).collect::<Vec<f32>>()
        };
        values.chunks(dk).flat_map(unit).collect()
    };
    let (q, key) = (units(1.0 / (dk as f64).sqrt()), units(1.0));
    let kappa = q.chunks(dk).zip(key.chunks(dk)).map(|(q, k)| dot(&wide(q), &wide(k)) as f32).collect();
    let mut gates = |low: f32| -> Vec<f32> {
        (0..tokens * k.value_heads).map(|_| low + (1.0 - low) * (0.5 + 0.5 * random.unit())).collect()
    };
    let (decay, beta) = (gates(0.8), gates(0.0));
    let conv = random.values(tokens * k.channels(), 1.0);
    Inputs { q, k: key, kappa, decay, beta, conv }
}

/// What y and the state of one sequence may be off by.
///
/// The recurrence shrinks errors: with |k| = 1, beta and g in 0 to 1, S (1 - beta k k^T) g is never longer than S. So the
/// error of a row of S, as a length, is at most the sum of what each token adds: the error of delta, times k, and the
/// roundings of the new row.
fn scan_errors(k: &DeltaScan, x: ScanInputs<'_>, state: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (dk, dv) = (k.key_dim, k.value_dim);
    let length = |x: &[f64]| dot(x, x).sqrt();
    let mut y_errors = vec![0.0; k.rows * k.value_heads * dv];
    let mut state_errors = Vec::new();
    for row in 0..k.value_heads * dv {
        let (h, mut s, mut error) = (row / dv, state[row * dk..][..dk].to_vec(), 0.0f64);
        let head = h / (k.value_heads / k.key_heads);
        for t in 0..k.rows {
            let q = &x.q[(t * k.key_heads + head) * dk..][..dk];
            let key = &x.k[(t * k.key_heads + head) * dk..][..dk];
            let (g, beta) = (x.decay[t * k.value_heads + h], x.beta[t * k.value_heads + h]);
            let v = x.conv[t * k.channels() + 2 * k.key_heads * dk + row];
            let recalled = g * dot(&s, key);
            let delta = beta * (v - recalled);
            let delta_error = beta * g * sum_error(dk) * magnitude(&s, key)
                + beta * U * (v.abs() + 3.0 * recalled.abs())
                + 2.0 * U * delta.abs();
            let kappa = dot(q, key);
            y_errors[t * k.value_heads * dv + row] = g
                * (error * length(q) + sum_error(dk) * magnitude(&s, q))
                + (delta_error + beta * g * error) * kappa.abs()
                + 3.0 * U * (g * dot(&s, q)).abs()
                + 4.0 * U * (delta * kappa).abs();
            s.iter_mut().zip(key).for_each(|(s, key)| *s = g * *s + delta * key);
            error = g * error + delta_error + U * (3.0 * length(&s) + 2.0 * delta.abs());
        }
        state_errors.extend(std::iter::repeat_n(error, dk));
    }
    (y_errors, state_errors)
}

pub(super) fn scan(k: &DeltaScan, random: &mut Random, worst: &mut Worst) {
    let x = inputs(k, random);
    let len = k.value_heads * k.value_dim * k.key_dim;
    let states: Vec<Vec<f32>> = (0..k.slots).map(|_| random.values(len, 0.5)).collect();
    let all = [&x.q, &x.k, &x.decay, &x.beta, &x.conv].map(|values| wide(values));
    let (mut y_want, mut state_want) = (Vec::new(), Vec::new());
    for (slot, state) in states.iter().enumerate() {
        let part = |i: usize, width: usize| &all[i][slot * k.rows * width..][..k.rows * width];
        let keys = k.key_heads * k.key_dim;
        let inputs = ScanInputs {
            q: part(0, keys),
            k: part(1, keys),
            decay: part(2, k.value_heads),
            beta: part(3, k.value_heads),
            conv: part(4, k.channels()),
        };
        let mut after = wide(state);
        let y = k.reference(inputs, &mut after);
        let (y_errors, state_errors) = scan_errors(k, inputs, &wide(state));
        let want = |(value, error): (f64, f64)| Want { value, error };
        y_want.extend(y.into_iter().zip(y_errors).map(want));
        state_want.push(after.into_iter().zip(state_errors).map(want).collect::<Vec<Want>>());
    }
    let mut operands = Operands::default().f32(&x.q).f32(&x.k).f32(&x.kappa).f32(&x.decay).f32(&x.beta);
    operands = operands.f32(&x.conv).out(y_want.len());
    for state in &states {
        operands = operands.f32(state);
    }
    operands.run_everywhere(&(*k).into(), |after| {
        worst.check(k, &after.got_f32(6), &y_want);
        for (slot, want) in state_want.iter().enumerate() {
            worst.check(k, &after.got_f32(7 + slot), want);
        }
    });
}
