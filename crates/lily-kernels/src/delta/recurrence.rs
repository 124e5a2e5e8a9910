//! Inputs of the recurrence for cases of GPUs, and how far off its results may be.

use super::{DeltaScan, ScanInputs};
use crate::Activation;
use crate::random::Random;
use crate::testing::{Bounds, Store, dot, magnitude, wide};

/// Operands of a scan, as its preparation makes them, for all sequences.
pub(super) struct ScanOperands {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) kappa: Vec<f32>,
    pub(super) decay: Vec<f32>,
    pub(super) beta: Vec<f32>,
    pub(super) conv: Vec<f32>,
}

/// q and k of unit length (q over the root of its width), some keys as the token before; gates in 0 to 1, most decays near
/// 1, some at either end.
pub(super) fn scan_inputs(k: &DeltaScan, activation: Activation, random: &mut Random) -> ScanOperands {
    let (tokens, dk) = (k.slots * k.rows, k.key_dim);
    let store = Store::of(crate::Element::Fine, activation);
    let mut units = |scale: f64, repeats: bool| -> Vec<f32> {
        let mut values = random.values(tokens * k.key_heads * dk, 1.0);
        let width = k.key_heads * dk;
        for t in (1..tokens).filter(|t| repeats && t % 5 == 4) {
            values.copy_within((t - 1) * width..t * width, t * width);
        }
        let unit = |x: &[f32]| {
            let norm = x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt() + 1e-9;
            x.iter().map(|x| store.round((f64::from(*x) / norm * scale) as f32)).collect::<Vec<f32>>()
        };
        values.chunks(dk).flat_map(unit).collect()
    };
    let (q, key) = (units(1.0 / (dk as f64).sqrt(), false), units(1.0, true));
    let kappa = q.chunks(dk).zip(key.chunks(dk)).map(|(q, k)| dot(&wide(q), &wide(k)) as f32).collect();
    let mut gates = |low: f32| -> Vec<f32> {
        (0..tokens * k.value_heads).map(|_| low + (1.0 - low) * (0.5 + 0.5 * random.unit())).collect()
    };
    let (mut decay, beta) = (gates(0.8), gates(0.0));
    for i in 0..decay.len() {
        match random.below(12) {
            0 => decay[i] = 0.0,
            1 => decay[i] = 1.0,
            2 => decay[i] = 1e-30,
            3 => decay[i] = 1.0 - 1e-6,
            _ => {}
        }
    }
    let conv = random.values(tokens * k.channels(), 1.0).iter().map(|v| store.round(*v)).collect();
    ScanOperands { q, k: key, kappa, decay, beta, conv }
}

/// What the inputs of a recurrence may be off by already.
pub(super) struct InputErrors {
    /// Of a key head's q and k, as lengths, `[rows, key_heads]`.
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    /// `[rows, value_heads]`.
    pub(super) decay: Vec<f64>,
    pub(super) beta: Vec<f64>,
    /// `[rows, value_heads, value_dim]`.
    pub(super) v: Vec<f64>,
}

impl InputErrors {
    /// Inputs that are exact.
    pub(super) fn none(k: &DeltaScan) -> Self {
        let (keys, values) = (vec![0.0; k.rows * k.key_heads], vec![0.0; k.rows * k.value_heads]);
        let v = vec![0.0; values.len() * k.value_dim];
        InputErrors { q: keys.clone(), k: keys, decay: values.clone(), beta: values, v }
    }
}

/// The definition's results for one sequence, and what a text's may be off by.
pub(super) struct Recurrence {
    pub(super) y: Vec<f64>,
    pub(super) y_error: Vec<f64>,
    pub(super) state: Vec<f64>,
    pub(super) state_error: Vec<f64>,
}

/// Token after token.
///
/// The recurrence shrinks errors: with |k| = 1, beta and g in 0 to 1, S (1 - beta k k^T) g is never longer than S. So the
/// error of a row of S, as a length, is at most the sum of what each token adds: the error of delta, times k, and the
/// roundings of the new row.
pub(super) fn recurrence(
    k: &DeltaScan,
    x: ScanInputs<'_>,
    e: &InputErrors,
    state: Vec<f64>,
    b: Bounds,
) -> Recurrence {
    let (dk, dv) = (k.key_dim, k.value_dim);
    let (u, sum) = (b.f32(), b.sum(dk, 4));
    let length = |x: &[f64]| dot(x, x).sqrt();
    let mut y_error = vec![0.0; k.rows * k.value_heads * dv];
    let mut state_error = Vec::new();
    for row in 0..k.value_heads * dv {
        let (h, mut s, mut error) = (row / dv, state[row * dk..][..dk].to_vec(), 0.0f64);
        for t in 0..k.rows {
            let keys = t * k.key_heads + h / (k.value_heads / k.key_heads);
            let (q, key) = (&x.q[keys * dk..][..dk], &x.k[keys * dk..][..dk]);
            let (q_error, key_error) = (e.q[keys], e.k[keys]);
            let (values, at) = (t * k.value_heads + h, t * k.value_heads * dv + row);
            let (g, g_error) = (x.decay[values], e.decay[values]);
            let (beta, beta_error) = (x.beta[values], e.beta[values]);
            let v = x.conv[t * k.channels() + 2 * k.key_heads * dk + row];
            let (size, found, asked) = (length(&s), dot(&s, key), dot(&s, q));
            let delta = beta * (v - g * found);
            let found_error = sum * magnitude(&s, key) + size * key_error;
            // Without what the state's own error adds, which the recurrence takes back.
            let delta_error = beta
                * (e.v[at] + g * found_error + g_error * found.abs() + u * (v.abs() + 3.0 * g * found.abs()))
                + beta_error * (v.abs() + g * found.abs())
                + 2.0 * u * delta.abs();
            let kappa = dot(q, key);
            let kappa_error = sum * magnitude(q, key) + length(q) * key_error + length(key) * q_error;
            y_error[at] = g * (error * length(q) + size * q_error + sum * magnitude(&s, q))
                + g_error * asked.abs()
                + (delta_error + beta * g * error * length(key)) * kappa.abs()
                + delta.abs() * kappa_error
                + 3.0 * u * (g * asked.abs() + (delta * kappa).abs());
            s.iter_mut().zip(key).for_each(|(s, key)| *s = g * *s + delta * key);
            error = g * error
                + g_error * size
                + (delta_error + u * delta.abs()) * length(key)
                + delta.abs() * key_error
                + 3.0 * u * length(&s);
        }
        state_error.extend(std::iter::repeat_n(error + crate::testing::TINY, dk));
    }
    let mut state = state;
    let y = k.reference(x, &mut state);
    Recurrence { y, y_error, state, state_error }
}
