//! Cases of the fused step.

use super::conv::conv_error;
use super::pool::Pool;
use super::prep::gate_errors;
use super::recurrence::{InputErrors, recurrence};
use super::{DeltaStep, L2_EPS, ScanInputs, StepInputs, StepState};
use crate::Activation;
use crate::random::Random;
use crate::testing::{Bounds, Case, CaseBuilder, GpuCases, plain, wide};

/// What one sequence's step gives, and may be off by.
struct Step {
    out: Vec<f64>,
    error: Vec<f64>,
    state: StepState,
    state_error: Vec<f64>,
}

/// The errors of the parts, one into the other; everything between the inputs and the result is f32.
fn step(k: &DeltaStep, x: StepInputs<'_>, before: &StepState, b: Bounds) -> Step {
    let channels = k.channels();
    let conv = k.conv_silu().reference(x.raw, x.conv, &before.conv);
    let rows = [&before.conv, x.raw].concat();
    let size = |t: usize, c: usize| -> f64 {
        (0..k.taps).map(|j| (x.conv[c * k.taps + j] * rows[(t + j) * channels + c]).abs()).sum()
    };
    let conv_errors: Vec<f64> =
        (0..conv.len()).map(|i| conv_error(b, k.taps, size(i / channels, i % channels), conv[i])).collect();
    let prepared = k.prep().reference(&conv, x.a, x.b, x.a_log, x.dt_bias);

    // Of a head x / sqrt(sum x^2 + eps) * scale: its own rounding, and the error of x, which grows as its values do.
    let rounding = 0.5 * b.sum(k.key_dim, 32) + 2.0 * b.function() + 4.0 * b.f32();
    let length = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let unit_errors = |first: usize, scale: f64| -> Vec<f64> {
        let heads = (0..k.rows).flat_map(|t| (0..k.key_heads).map(move |h| (t, h)));
        let error = |(t, h): (usize, usize)| {
            let at = t * channels + first + h * k.key_dim;
            let (x, x_errors) = (&conv[at..][..k.key_dim], &conv_errors[at..][..k.key_dim]);
            let root = (length(x).powi(2) + f64::from(L2_EPS)).sqrt();
            scale * (length(x_errors) + rounding * length(x)) / root
        };
        heads.map(error).collect()
    };
    let gates = prepared
        .decay
        .iter()
        .zip(&prepared.beta)
        .enumerate()
        .map(|(i, (decay, beta))| gate_errors(b, x.a[i] + x.dt_bias[i % k.value_heads], *decay, *beta));
    let (decay, beta) = gates.unzip();
    let keys = k.key_heads * k.key_dim;
    let errors = InputErrors {
        q: unit_errors(0, 1.0 / (k.key_dim as f64).sqrt()),
        k: unit_errors(keys, 1.0),
        decay,
        beta,
        v: conv_errors.chunks(channels).flat_map(|row| row[2 * keys..].to_vec()).collect(),
    };
    let inputs = ScanInputs {
        q: &prepared.q,
        k: &prepared.k,
        decay: &prepared.decay,
        beta: &prepared.beta,
        conv: &conv,
    };
    let scan = recurrence(&k.scan(), inputs, &errors, before.delta.clone(), b);
    let mut state = before.clone();
    let out = k.reference(x, &mut state);
    let error = if k.gated { gated_errors(k, x, &scan.y, &scan.y_error, b) } else { scan.y_error };
    Step { out, error, state, state_error: scan.state_error }
}

/// Of y * rsqrt(mean y^2 + eps) * norm * SiLU(z).
fn gated_errors(k: &DeltaStep, x: StepInputs<'_>, y: &[f64], y_error: &[f64], b: Bounds) -> Vec<f64> {
    let n = k.value_dim;
    let mut errors = Vec::new();
    for (at, (y, y_error)) in y.chunks(n).zip(y_error.chunks(n)).enumerate() {
        let mean = y.iter().map(|y| y * y).sum::<f64>() / n as f64 + f64::from(k.eps);
        let scale = 1.0 / mean.sqrt();
        // The root's slope, in the direction of the errors.
        let moved = y.iter().zip(y_error).map(|(y, e)| (y * e).abs()).sum::<f64>() / n as f64 / mean;
        let relative = moved + 0.5 * b.sum(n, 32) + 3.0 * b.function() + 5.0 * b.f32();
        for i in 0..n {
            let z = x.z[at * n + i];
            let gate = (scale * x.norm[i] * crate::quant::silu(z)).abs();
            errors.push(gate * (y_error[i] + y[i].abs() * relative));
        }
    }
    errors
}

impl GpuCases for DeltaStep {
    fn gpu_cases() -> Vec<Self> {
        DeltaStep::cases()
    }

    fn case(&self, activation: Activation, random: &mut Random) -> Case {
        let b = Bounds::new(activation);
        let (n, channels) = (self.slots * self.rows, self.channels());
        let (gates, values) = (n * self.value_heads, n * self.value_heads * self.value_dim);
        // A key head so small that the epsilon decides.
        let small = |mut rows: Vec<f32>| {
            rows.chunks_mut(channels).for_each(|row| row[..self.key_dim].iter_mut().for_each(|x| *x *= 1e-4));
            rows
        };
        let builder = CaseBuilder::new(*self, activation);
        let raw = builder.rounded(&small(random.values(n * channels, 2.0)));
        let z = builder.rounded(&random.values(values, 2.0));
        let (mut a, mut beta) = (random.values(gates, 3.0), random.values(gates, 3.0));
        (a[0], beta[0]) = (60.0, -80.0);
        (a[gates - 1], beta[gates - 1]) = (-90.0, 95.0);
        let (a, beta) = (builder.rounded(&a), builder.rounded(&beta));
        let (conv, conv_values) = plain(random, self.conv, channels * self.taps, 0.1, 0.6);
        let (a_log, a_log_values) = plain(random, self.a_log, self.value_heads, -1.0, 2.0);
        let (dt_bias, dt_values) = plain(random, self.dt_bias, self.value_heads, -3.0, 2.0);
        let (norm, norm_values) = plain(random, self.norm, self.value_dim, 1.0, 0.5);
        let conv_states: Vec<Vec<f32>> =
            (0..self.slots).map(|_| small(random.values((self.taps - 1) * channels, 2.0))).collect();
        let len = self.value_heads * self.value_dim * self.key_dim;
        let states: Vec<Vec<f32>> = (0..self.slots).map(|_| random.values(len, 0.5)).collect();
        let pool = Pool::new(self.slots, false, random);

        let all = [&raw, &z, &a, &beta].map(|values| wide(values));
        let (mut out, mut error) = (vec![], vec![]);
        let (mut conv_after, mut after, mut state_error) = (vec![], vec![], vec![]);
        for slot in 0..self.slots {
            let part = |i: usize| &all[i][slot * all[i].len() / self.slots..][..all[i].len() / self.slots];
            let inputs = StepInputs {
                raw: part(0),
                z: part(1),
                a: part(2),
                b: part(3),
                conv: &conv_values,
                a_log: &a_log_values,
                dt_bias: &dt_values,
                norm: &norm_values,
            };
            let before = StepState { conv: wide(&conv_states[slot]), delta: wide(&states[slot]) };
            let step = step(self, inputs, &before, b);
            let live = !pool.done(slot);
            let kept = |v: &f64| if live { *v } else { 0.0 };
            out.extend(step.out.iter().map(kept));
            let stored = step.out.iter().zip(&step.error).map(|(v, e)| b.fine().store(*v, *e));
            error.extend(stored.map(|e| kept(&e)));
            conv_after.push(step.state.conv);
            after.push(step.state.delta);
            state_error.push(step.state_error);
        }
        let case = builder.input(&raw).input(&z).input(&a).input(&beta).tensor(&conv).tensor(&a_log);
        let case = case.tensor(&dt_bias).tensor(&norm).output(out, error);
        let exact: Vec<Vec<f64>> = conv_after.iter().map(|s| vec![0.0; s.len()]).collect();
        let case = case.update(&pool.before(&conv_states), pool.after(&conv_after), pool.after(&exact));
        let case = case.update(&pool.before(&states), pool.after(&after), pool.after(&state_error));
        let case = case.slots(&pool.table);
        // A sequence that is done touches less.
        if (0..self.slots).any(|slot| pool.done(slot)) { case.touches_less().build() } else { case.build() }
    }
}
