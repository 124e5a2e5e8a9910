//! Attention and its preparation, over caches in pages.

use lily_kernels::attention::{Attend, AttentionPrep, AttentionShape};
use lily_kernels::random::Random;

use super::compare::*;
use super::operands::{Operands, Paged};
use super::plain;
use crate::state::PAGE_TOKENS;

/// Where each slot's rows stand: the first at the end of the context, the second at its start, others anywhere.
fn positions(s: &AttentionShape, random: &mut Random) -> Vec<u32> {
    let room = s.context - s.rows;
    let start = |slot: usize| match slot {
        0 => room,
        1 => 0,
        _ => random.below(room + 1),
    };
    (0..s.slots).map(start).flat_map(|start| (0..s.rows).map(move |t| (start + t) as u32)).collect()
}

pub(super) fn prep(k: &AttentionPrep, random: &mut Random, worst: &mut Worst) {
    let s = &k.shape;
    let (n, d, kv_width) = (s.slots * s.rows, s.head_dim, s.kv_heads * s.head_dim);
    let qg = random.values(n * s.query_heads * 2 * d, 1.0);
    let (key, value) = (random.values(n * kv_width, 1.0), random.values(n * kv_width, 1.0));
    let (q_norm, q_values) = plain(random, k.q_norm, d, 1.3, 0.3);
    let (k_norm, k_values) = plain(random, k.k_norm, d, 1.3, 0.3);
    let positions = positions(s, random);
    let (q_want, k_want) = k.reference(&wide(&qg), &wide(&key), &q_values, &k_values, &positions);
    // A turned pair: each part carries the error of the norm and of its sine or cosine, and is not larger than the
    // pair's length.
    let relative = norm_error(d) + 6.0 * U;
    let turned = |values: &[f64]| -> Vec<Want> {
        let half = k.rotary_dim / 2;
        let size = |head: &[f64], i: usize| match i {
            i if i < half => head[i].hypot(head[i + half]),
            i if i < 2 * half => head[i].hypot(head[i - half]),
            _ => head[i].abs(),
        };
        let head = |head: &[f64]| -> Vec<Want> {
            let want = |i: usize| Want { value: head[i], error: 1.5 * relative * size(head, i) };
            (0..d).map(want).collect()
        };
        values.chunks(d).flat_map(head).collect()
    };
    let (q_want, k_want) = (turned(&q_want), turned(&k_want));

    // The cache holds a token before the rows, where there is one, and one behind: both must stay.
    let of_slot = |slot: usize| &positions[slot * s.rows..][..s.rows];
    let neighbours = |slot: usize| {
        let rows = of_slot(slot);
        let before = (rows[0] as usize).checked_sub(1);
        let behind = Some(rows[s.rows - 1] as usize + 1).filter(|p| *p < s.context);
        before.into_iter().chain(behind)
    };
    let old = vec![0.625f32; kv_width];
    let cache = |slot: usize| {
        let touched = of_slot(slot).iter().map(|p| *p as usize).chain(neighbours(slot));
        let mut cache = Paged::new(s.kv_heads, d, s.context, touched);
        neighbours(slot).for_each(|p| cache.set(p, &old));
        cache
    };
    let mut operands = Operands::default().f32(&qg).f32(&key).f32(&value).tensor(&q_norm).tensor(&k_norm);
    operands = operands.u32(&positions).out(q_want.len());
    for slot in (0..s.slots).chain(0..s.slots) {
        operands = operands.paged(cache(slot));
    }
    operands.run_everywhere(&(*k).into(), |after| {
        worst.check(k, &after.got_f32(6), &q_want);
        for slot in 0..s.slots {
            let (keys, values) = (after.got_paged(7 + slot), after.got_paged(7 + s.slots + slot));
            let (mut all_keys, mut all_values) = (cache(slot), cache(slot));
            for (t, position) in of_slot(slot).iter().enumerate() {
                let (row, position) = (slot * s.rows + t, *position as usize);
                let got = keys.get(position);
                worst.check(k, &got, &k_want[row * kv_width..][..kv_width]);
                worst.check_exact(k, &values.get(position), &value[row * kv_width..][..kv_width]);
                all_keys.set(position, &got);
                all_values.set(position, &values.get(position));
            }
            assert!(*keys == all_keys && *values == all_values, "{k:?}: other tokens of the cache changed");
        }
    });
}

/// A row's bound, given what its keys and values are: `[head_dim]` for each query head.
///
/// A weight's relative error is the error of its score, plus that of e^x, of the fades between blocks, and of
/// score - max (rounded once, up to the spread). Such errors move a weighted mean by twice themselves at most; its two
/// sums then round as sums do, one term after the other.
fn attend_errors(s: &AttentionShape, q: &[f64], keys: &[f64], values: &[f64], out: &[f64]) -> Vec<f64> {
    let (d, stride) = (s.head_dim, s.kv_heads * s.head_dim);
    let tokens = keys.len() / stride;
    let scale = 1.0 / (d as f64).sqrt();
    let mut errors = Vec::new();
    for (h, q) in q.chunks(d).enumerate() {
        let start = h / (s.query_heads / s.kv_heads) * d;
        let at = |x: &[f64], j: usize| x[j * stride + start..][..d].to_vec();
        let scores: Vec<f64> = (0..tokens).map(|j| scale * dot(q, &at(keys, j))).collect();
        let score_error = (0..tokens)
            .map(|j| (sum_error(d) + 2.0 * U) * scale * magnitude(q, &at(keys, j)))
            .fold(0.0, f64::max);
        let (low, high) = scores.iter().fold((f64::MAX, f64::MIN), |(l, h), s| (l.min(*s), h.max(*s)));
        let blocks = tokens.div_ceil(PAGE_TOKENS) as f64;
        let weight_error = score_error + ((high - low) + (EXP + 1.0) * (1.0 + blocks)) * U;
        let relative = 2.0 * weight_error + 2.0 * sum_error(4 * tokens);
        let weights: Vec<f64> = scores.iter().map(|s| (s - high).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for e in 0..d {
            let size: f64 = (0..tokens).map(|j| weights[j] / sum * at(values, j)[e].abs()).sum();
            // the gate is below 1
            errors.push(relative * size + (GATE_ERROR + 2.0 * U) * out[h * d + e].abs());
        }
    }
    errors
}

pub(super) fn attend(k: &Attend, random: &mut Random, worst: &mut Worst) {
    let s = &k.shape;
    let (n, d, kv_width) = (s.slots * s.rows, s.head_dim, s.kv_heads * s.head_dim);
    let q_width = s.query_heads * d;
    let (q, qg) = (random.values(n * q_width, 1.5), random.values(n * 2 * q_width, 3.0));
    let positions = positions(s, random);
    let caches: Vec<(Vec<f32>, Vec<f32>)> = (0..s.slots)
        .map(|slot| {
            let tokens = positions[(slot + 1) * s.rows - 1] as usize + 1;
            (random.values(tokens * kv_width, 1.5), random.values(tokens * kv_width, 1.0))
        })
        .collect();
    let mut want = Vec::new();
    for (row, position) in positions.iter().enumerate() {
        let seen = (*position as usize + 1) * kv_width;
        let (keys, values) = &caches[row / s.rows];
        let (keys, values) = (wide(&keys[..seen]), wide(&values[..seen]));
        let q = wide(&q[row * q_width..][..q_width]);
        let gates = wide(&qg[row * 2 * q_width..][..2 * q_width]);
        let gates: Vec<f64> = gates.chunks(2 * d).flat_map(|head| &head[d..]).copied().collect();
        let out = k.reference_row(&q, &gates, &keys, &values);
        let errors = attend_errors(s, &q, &keys, &values, &out);
        want.extend(out.into_iter().zip(errors).map(|(value, error)| Want { value, error }));
    }
    // Everything behind a sequence's last token is NaN.
    let paged = |cache: &[f32]| {
        let tokens = cache.len() / kv_width;
        let mut paged = Paged::new(s.kv_heads, d, s.context, 0..tokens);
        cache.chunks(kv_width).enumerate().for_each(|(position, token)| paged.set(position, token));
        paged
    };
    let mut operands = Operands::default().f32(&q).f32(&qg).u32(&positions).out(want.len());
    for (keys, _) in &caches {
        operands = operands.paged(paged(keys));
    }
    for (_, values) in &caches {
        operands = operands.paged(paged(values));
    }
    operands.run_everywhere(&(*k).into(), |after| worst.check(k, &after.got_f32(3), &want));
}
