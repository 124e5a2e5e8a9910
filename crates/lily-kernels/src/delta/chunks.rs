//! How far off the recurrence may be when it is computed as products of matrices, a chunk of tokens at a time.

use super::recurrence::Recurrence;
use super::{DeltaScan, ScanInputs};
use crate::testing::{Bounds, TINY, dot, magnitude};

/// Tokens of a chunk of delta_scan_chunked.metal.
const CHUNK: usize = 16;

/// A chunk of one value head: what delta_scan_chunked.metal says of its decays and products, and what those may be off by.
struct Chunk<'a> {
    q: Vec<&'a [f64]>,
    k: Vec<&'a [f64]>,
    beta: Vec<f64>,
    /// G(t), E(i).
    grown: Vec<f64>,
    rest: Vec<f64>,
    /// `[t][i]`: of delta_t and of y_t, each with its error.
    system: Vec<Vec<(f64, f64)>>,
    answer: Vec<Vec<(f64, f64)>>,
    /// Absolute values of the inverse of 1 + system.
    inverse: Vec<Vec<f64>>,
}

impl<'a> Chunk<'a> {
    fn new(
        k: &DeltaScan,
        x: &ScanInputs<'a>,
        head: usize,
        tokens: std::ops::Range<usize>,
        b: Bounds,
    ) -> Self {
        let at = |t: usize| (t * k.key_heads + head / (k.value_heads / k.key_heads)) * k.key_dim;
        let q: Vec<&[f64]> = tokens.clone().map(|t| &x.q[at(t)..][..k.key_dim]).collect();
        let keys: Vec<&[f64]> = tokens.clone().map(|t| &x.k[at(t)..][..k.key_dim]).collect();
        let gate = |values: &[f64]| tokens.clone().map(|t| values[t * k.value_heads + head]).collect();
        let (decay, beta): (Vec<f64>, Vec<f64>) = (gate(x.decay), gate(x.beta));
        let n = q.len();
        let between = |t: usize, i: usize| decay[i + 1..=t].iter().product::<f64>();
        // The product's sum, up to 16 products of decays, beta.
        let entry = |factor: f64, a: &[f64], c: &[f64]| {
            let value = factor * dot(a, c);
            let error = factor * b.sum(k.key_dim, 1) * magnitude(a, c) + 20.0 * b.f32() * value.abs();
            (value, error + TINY)
        };
        let system: Vec<Vec<(f64, f64)>> = (0..n)
            .map(|t| (0..t).map(|i| entry(beta[t] * between(t, i), keys[t], keys[i])).collect())
            .collect();
        let answer = (0..n).map(|t| (0..=t).map(|i| entry(between(t, i), q[t], keys[i])).collect()).collect();
        let mut inverse = vec![vec![0.0; n]; n];
        for column in 0..n {
            for t in column..n {
                let sum: f64 = (column..t).map(|i| system[t][i].0 * inverse[i][column]).sum();
                inverse[t][column] = if t == column { 1.0 } else { -sum };
            }
        }
        inverse.iter_mut().flatten().for_each(|v| *v = v.abs());
        let grown = (0..n).map(|t| decay[..=t].iter().product()).collect();
        let rest = (0..n).map(|i| between(n - 1, i)).collect();
        Chunk { q, k: keys, beta, grown, rest, system, answer, inverse }
    }

    /// For one row s of the state, with an error of this length, and its v: errors of y, and the error of the row behind the
    /// chunk. The row's own error shrinks as in the token-wise recurrence; what this chunk adds goes through the inverse.
    fn errors(&self, s: &[f64], error: f64, v: &[f64], b: Bounds) -> (Vec<f64>, f64) {
        let (n, u) = (self.q.len(), b.f32());
        let length = |x: &[f64]| dot(x, x).sqrt();
        // S k and S q: a sum, of values of S that were rounded.
        let found = |x: &[f64]| {
            let squares = s.iter().zip(x).map(|(s, x)| (s * x).powi(2)).sum::<f64>();
            (dot(s, x), b.sum(s.len(), 1) * magnitude(s, x) + b.fine().tile_weights() * squares.sqrt())
        };
        let mut delta: Vec<f64> = Vec::new();
        let mut added = Vec::new();
        for t in 0..n {
            let (recalled, recalled_error) = found(self.k[t]);
            let own = self.beta[t] * (v[t] - self.grown[t] * recalled);
            let before: Vec<f64> = delta.clone();
            let earlier = self.system[t].iter().zip(&before);
            delta.push(own - earlier.clone().map(|((a, _), d)| a * d).sum::<f64>());
            let sizes: f64 = earlier.clone().map(|((a, _), d)| (a * d).abs()).sum();
            let recalled = self.grown[t] * recalled.abs();
            added.push(
                self.beta[t] * (self.grown[t] * recalled_error + u * (2.0 * v[t].abs() + 22.0 * recalled))
                    + b.sum(CHUNK, 1) * (sizes + own.abs())
                    + earlier.map(|((_, e), d)| e * d.abs()).sum::<f64>(),
            );
        }
        let delta_error: Vec<f64> = self.inverse.iter().map(|row| dot(row, &added)).collect();
        let y_errors = (0..n).map(|t| {
            let (asked, asked_error) = found(self.q[t]);
            let (mut sizes, mut passed) = (self.grown[t] * asked.abs(), 0.0);
            for (i, (m, e)) in self.answer[t].iter().enumerate() {
                sizes += (m * delta[i]).abs();
                passed += m.abs() * delta_error[i] + e * delta[i].abs();
            }
            self.grown[t] * (error * length(self.q[t]) + asked_error)
                + passed
                + (b.sum(CHUNK + 1, 1) + 20.0 * u) * sizes
        });
        let last = self.grown[n - 1];
        let parts: Vec<f64> = (0..n).map(|i| (self.rest[i] * delta[i]).abs() * length(self.k[i])).collect();
        let passed: f64 = (0..n).map(|i| self.rest[i] * delta_error[i] * length(self.k[i])).sum();
        let after = last * error
            + passed
            + b.fine().tile_weights() * length(&parts)
            + (b.sum(CHUNK + 1, 1) + 20.0 * u) * (last * length(s) + parts.iter().sum::<f64>());
        (y_errors.collect(), after)
    }
}

/// Chunk after chunk.
pub(super) fn chunked_recurrence(k: &DeltaScan, x: ScanInputs<'_>, state: Vec<f64>, b: Bounds) -> Recurrence {
    let (dk, dv, heads) = (k.key_dim, k.value_dim, k.value_heads);
    let mut y_error = vec![0.0; k.rows * heads * dv];
    let (mut now, mut y, mut errors) = (state, Vec::new(), vec![0.0; heads * dv]);
    for start in (0..k.rows).step_by(CHUNK) {
        let tokens = start..(start + CHUNK).min(k.rows);
        for head in 0..heads {
            let chunk = Chunk::new(k, &x, head, tokens.clone(), b);
            for row in head * dv..(head + 1) * dv {
                let channel = 2 * k.key_heads * dk + row;
                let v: Vec<f64> = tokens.clone().map(|t| x.conv[t * k.channels() + channel]).collect();
                let (of_y, after) = chunk.errors(&now[row * dk..][..dk], errors[row], &v, b);
                tokens.clone().zip(of_y).for_each(|(t, e)| y_error[t * heads * dv + row] = e);
                errors[row] = after;
            }
        }
        let part = DeltaScan { rows: tokens.len(), ..*k };
        fn cut<'a>(values: &'a [f64], rows: usize, tokens: &std::ops::Range<usize>) -> &'a [f64] {
            let width = values.len() / rows;
            &values[tokens.start * width..tokens.end * width]
        }
        let inputs = ScanInputs {
            q: cut(x.q, k.rows, &tokens),
            k: cut(x.k, k.rows, &tokens),
            decay: cut(x.decay, k.rows, &tokens),
            beta: cut(x.beta, k.rows, &tokens),
            conv: cut(x.conv, k.rows, &tokens),
        };
        y.extend(part.reference(inputs, &mut now));
    }
    let state_error = errors.iter().flat_map(|e| std::iter::repeat_n(e + TINY, dk)).collect();
    Recurrence { y, y_error, state: now, state_error }
}
