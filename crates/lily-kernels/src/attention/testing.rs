//! Inputs, expected results and their bounds that the kernels of attention share in tests.

use super::{AttentionPrep, AttentionShape, PAGE_TOKENS};
use crate::Activation;
use crate::quant::sigmoid;
use crate::random::Random;
use crate::testing::{Bounds, magnitude};

/// Where each slot's rows stand: the first at the end of the context, the second at its start, others anywhere.
pub(super) fn positions(s: &AttentionShape, random: &mut Random) -> Vec<u32> {
    let room = s.context - s.rows;
    let start = |slot: usize| match slot {
        0 => room,
        1 => 0,
        _ => random.below(room + 1),
    };
    (0..s.slots).map(start).flat_map(|start| (0..s.rows).map(move |t| (start + t) as u32)).collect()
}

/// The pages of all slots. Only those of tokens that a test has are there; the others are page 0, which nobody may touch.
pub(super) struct Pool {
    heads: usize,
    width: usize,
    tables: Vec<Vec<u32>>,
    pages: usize,
}

impl Pool {
    /// `tokens` gives what each slot has.
    pub(super) fn new(s: &AttentionShape, tokens: &[std::ops::Range<usize>], random: &mut Random) -> Pool {
        let mut tables = vec![vec![0; s.context.div_ceil(PAGE_TOKENS)]; s.slots];
        let mut places: Vec<(usize, usize)> = Vec::new();
        for (slot, tokens) in tokens.iter().enumerate() {
            places.extend((tokens.start / PAGE_TOKENS..tokens.end.div_ceil(PAGE_TOKENS)).map(|p| (slot, p)));
        }
        // An odd number of pages in between that are nobody's.
        let pages = places.len() + 2;
        let mut free: Vec<u32> = (1..pages as u32).collect();
        for (slot, place) in places {
            tables[slot][place] = free.swap_remove(random.below(free.len()));
        }
        Pool { heads: s.kv_heads, width: s.head_dim, tables, pages }
    }

    /// NaN everywhere.
    pub(super) fn empty(&self) -> Vec<f32> {
        vec![f32::NAN; self.pages * self.heads * PAGE_TOKENS * self.width]
    }

    /// The elements of a token's head.
    pub(super) fn at(&self, slot: usize, position: usize, head: usize) -> std::ops::Range<usize> {
        let page = self.tables[slot][position / PAGE_TOKENS] as usize;
        assert!(page > 0, "slot {slot} has no token {position}");
        let start = ((page * self.heads + head) * PAGE_TOKENS + position % PAGE_TOKENS) * self.width;
        start..start + self.width
    }

    /// Writes the tokens from `first` on: `[tokens, heads, width]`.
    pub(super) fn fill<T: Copy>(&self, pool: &mut [T], slot: usize, first: usize, values: &[T]) {
        for (i, head) in values.chunks(self.width).enumerate() {
            pool[self.at(slot, first + i / self.heads, i % self.heads)].copy_from_slice(head);
        }
    }

    /// For [`crate::testing::CaseBuilder::slots`].
    pub(super) fn slots(&self) -> Vec<(u32, u32, Vec<u32>, bool)> {
        self.tables.iter().map(|t| (0, 0, t.clone(), false)).collect()
    }
}

/// Filled caches, as values that the type of activations holds.
pub(super) struct Caches {
    pub(super) pool: Pool,
    /// Of each slot, `[tokens, kv_heads, width]`.
    pub(super) keys: Vec<Vec<f64>>,
    pub(super) values: Vec<Vec<f64>>,
    pub(super) key_pool: Vec<f32>,
    pub(super) value_pool: Vec<f32>,
}

impl Caches {
    /// `filled` tokens of each slot, with room up to `tokens`.
    pub(super) fn new(
        s: &AttentionShape,
        filled: &[usize],
        tokens: &[usize],
        activation: Activation,
        random: &mut Random,
    ) -> Caches {
        let store = crate::testing::Store::of(crate::Element::Activation, activation);
        let ranges: Vec<_> = tokens.iter().map(|t| 0..*t).collect();
        let pool = Pool::new(s, &ranges, random);
        let (mut key_pool, mut value_pool) = (pool.empty(), pool.empty());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (slot, filled) in filled.iter().enumerate() {
            for (pool_values, all, scale) in
                [(&mut key_pool, &mut keys, 1.5), (&mut value_pool, &mut values, 1.0)]
            {
                let mut made = random.values(filled * s.kv_heads * s.head_dim, scale);
                made.iter_mut().for_each(|v| *v = store.round(*v));
                pool.fill(pool_values, slot, 0, &made);
                all.push(crate::testing::wide(&made));
            }
        }
        Caches { pool, keys, values, key_pool, value_pool }
    }
}

/// How far scores and weights may be off.
#[derive(Clone, Copy)]
pub(super) struct Slack {
    pub(super) bounds: Bounds,
    /// Lanes that share the sum of a score.
    pub(super) lanes: usize,
    /// Weights are rounded to activations before they multiply values.
    pub(super) tile: bool,
    /// Relative error of an element of q, of its pair's size.
    pub(super) q: f64,
}

/// What one row's head sums up over some keys.
pub(super) struct HeadSums {
    /// Of e^(score - top) * value.
    pub(super) sum: Vec<f64>,
    pub(super) sum_error: Vec<f64>,
    /// In units of log2(e).
    pub(super) top: f64,
    pub(super) top_error: f64,
    pub(super) weight: f64,
    pub(super) weight_error: f64,
    /// sum / weight and its error.
    pub(super) mean: Vec<f64>,
    pub(super) mean_error: Vec<f64>,
}

/// Sums of one query head over keys `[tokens, kv_heads, width]` of head `kv`. `key_error` is the absolute error of elements of
/// each key, as a multiple of the element.
pub(super) fn head_sums(
    s: &AttentionShape,
    slack: Slack,
    q: &[f64],
    kv: usize,
    keys: &[f64],
    values: &[f64],
    key_error: impl Fn(usize) -> f64,
) -> HeadSums {
    let (b, d) = (slack.bounds, s.head_dim);
    let stride = s.kv_heads * d;
    let at = |x: &'_ [f64], j: usize| -> Vec<f64> { x[j * stride + kv * d..][..d].to_vec() };
    let n = keys.len() / stride;
    let scale = 1.0 / (d as f64).sqrt();
    let mut scores = Vec::new();
    let mut errors = Vec::new();
    for j in 0..n {
        let key = at(keys, j);
        let size = scale * magnitude(q, &key);
        scores.push(scale * crate::testing::dot(q, &key));
        errors.push((b.sum(d, slack.lanes) + 3.0 * b.f32() + slack.q + key_error(j)) * size);
    }
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top_error = errors.iter().copied().fold(0.0, f64::max) + top.abs() * b.f32();
    // Of each weight: its score and the difference to the largest, e^x, and the fades between steps, of which few are not 1.
    let relative: Vec<f64> = scores
        .iter()
        .zip(&errors)
        .map(|(s, e)| e + top_error + (s.abs() + 2.0 * (top - s)) * b.f32() + 8.0 * b.function())
        .collect();
    let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sums = b.sum(n, 1);
    let weight: f64 = p.iter().sum();
    let weight_error = p.iter().zip(&relative).map(|(p, r)| p * (r + sums)).sum();
    let (mut sum, mut sum_error) = (vec![0.0; d], vec![0.0; d]);
    let (mut mean, mut mean_error) = (vec![0.0; d], vec![0.0; d]);
    let mut squares = vec![0.0; d];
    let mut sizes = vec![0.0; d];
    for j in 0..n {
        for (e, v) in at(values, j).iter().enumerate() {
            sum[e] += p[j] * v;
            sum_error[e] += p[j] * v.abs() * (relative[j] + sums);
            squares[e] += (p[j] * v).powi(2);
            sizes[e] += v.abs();
        }
    }
    for e in 0..d {
        mean[e] = sum[e] / weight;
        // The mean moves by no more than its weights do.
        let moved: f64 = p.iter().zip(&relative).map(|(p, r)| p * (r + sums)).sum::<f64>() / weight;
        mean_error[e] = sum_error[e] / weight + mean[e].abs() * (moved + 2.0 * b.f32());
        if slack.tile {
            let small = if b.activation() == Activation::F16 { 6e-8 * sizes[e] } else { 0.0 };
            let rounded = (b.tile_weights() * squares[e].sqrt() + small) / weight;
            mean_error[e] += rounded;
        }
    }
    HeadSums {
        sum,
        sum_error,
        top: top * std::f64::consts::LOG2_E,
        top_error: 1.5 * top_error,
        weight,
        weight_error,
        mean,
        mean_error,
    }
}

/// A finished head: value and bound of each element.
pub(super) fn finished(b: Bounds, sums: &HeadSums, gate: &[f64]) -> Vec<(f64, f64)> {
    let one = |e: usize| {
        let g = sigmoid(gate[e]);
        let value = sums.mean[e] * g;
        (value, b.fine().store(value, sums.mean_error[e] * g + value.abs() * (b.function() + 3.0 * b.f32())))
    };
    (0..gate.len()).map(one).collect()
}

/// Bounds of prepared heads of q or k, before they are stored: the norm, then a product and a sum of a pair's parts.
pub(super) fn prepared_error(prep: &AttentionPrep, b: Bounds, heads: &[f64]) -> Vec<f64> {
    let half = prep.rotary_dim / 2;
    let relative = prepared_relative(prep, b);
    let size = |head: &[f64], i: usize| match i {
        i if i < half => head[i].hypot(head[i + half]),
        i if i < 2 * half => head[i].hypot(head[i - half]),
        _ => head[i].abs(),
    };
    let d = prep.shape.head_dim;
    heads.chunks(d).flat_map(|head| (0..d).map(|i| relative * size(head, i)).collect::<Vec<_>>()).collect()
}

/// The same as a multiple of a pair's size: half of the sum's error through the root, the root, sine and cosine, products.
pub(super) fn prepared_relative(prep: &AttentionPrep, b: Bounds) -> f64 {
    0.5 * b.sum(prep.shape.head_dim, 32) + 2.0 * b.function() + 6.0 * b.f32()
}

/// Appends what a row's head leaves of each block: NaN of blocks behind the keys that it sees.
pub(super) fn partial_of(
    s: &AttentionShape,
    block: usize,
    seen: usize,
    want: &mut Vec<f64>,
    error: &mut Vec<f64>,
    sums: impl Fn(std::ops::Range<usize>) -> HeadSums,
) {
    for begin in (0..s.context).step_by(block) {
        if begin >= seen {
            want.extend(vec![f64::NAN; s.head_dim + 2]);
            error.extend(vec![0.0; s.head_dim + 2]);
            continue;
        }
        let sums = sums(begin..seen.min(begin + block));
        want.extend(sums.sum.iter().chain(&[sums.top, sums.weight]));
        error.extend(sums.sum_error.iter().chain(&[sums.top_error, sums.weight_error]));
    }
}

/// Inputs of a fused step, with the caches before it and after it.
pub(super) struct StepInputs {
    pub(super) qg: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) q_norm: Vec<u8>,
    pub(super) k_norm: Vec<u8>,
    pub(super) positions: Vec<u32>,
    /// Prepared, not rounded: `[n, query_heads, width]`.
    pub(super) q: Vec<f64>,
    pub(super) caches: Caches,
    /// Of each slot, with the new rows as they are stored: `[tokens, kv_heads, width]`.
    pub(super) keys: Vec<Vec<f64>>,
    pub(super) values: Vec<Vec<f64>>,
    /// Wanted of the pools: NaN but for the new rows.
    pub(super) keys_want: Vec<f64>,
    pub(super) keys_error: Vec<f64>,
    pub(super) values_want: Vec<f64>,
}

impl StepInputs {
    pub(super) fn new(prep: &AttentionPrep, activation: Activation, random: &mut Random) -> StepInputs {
        use crate::testing::{Store, plain, wide};
        let (b, s, d) = (Bounds::new(activation), &prep.shape, prep.shape.head_dim);
        let store = Store::of(crate::Element::Activation, activation);
        let mut act =
            |n: usize| -> Vec<f32> { random.values(n, 1.0).into_iter().map(|v| store.round(v)).collect() };
        let (qg, k, v) = (act(2 * s.queries()), act(s.new_keys()), act(s.new_keys()));
        let (q_norm, q_values) = plain(random, prep.q_norm, d, 1.3, 0.3);
        let (k_norm, k_values) = plain(random, prep.k_norm, d, 1.3, 0.3);
        let positions = positions(s, random);
        let (q, new_keys) = prep.reference(&wide(&qg), &wide(&k), &q_values, &k_values, &positions);
        let new_error = prepared_error(prep, b, &new_keys);
        let base: Vec<usize> = (0..s.slots).map(|slot| positions[slot * s.rows] as usize).collect();
        let tokens: Vec<usize> = base.iter().map(|base| base + s.rows).collect();
        let caches = Caches::new(s, &base, &tokens, activation, random);
        let (mut keys, mut values) = (caches.keys.clone(), caches.values.clone());
        let mut keys_want = wide(&caches.pool.empty());
        let (mut keys_error, mut values_want) = (vec![0.0; keys_want.len()], keys_want.clone());
        let new = s.rows * s.kv_heads * d;
        for slot in 0..s.slots {
            let part = slot * new..(slot + 1) * new;
            let stored: Vec<f64> =
                new_keys[part.clone()].iter().map(|v| f64::from(store.round(*v as f32))).collect();
            let error: Vec<f64> = new_keys[part.clone()]
                .iter()
                .zip(&new_error[part.clone()])
                .map(|(v, e)| b.store(*v, *e))
                .collect();
            let value = wide(&v[part.clone()]);
            caches.pool.fill(&mut keys_want, slot, base[slot], &new_keys[part]);
            caches.pool.fill(&mut keys_error, slot, base[slot], &error);
            caches.pool.fill(&mut values_want, slot, base[slot], &value);
            keys[slot].extend(stored);
            values[slot].extend(value);
        }
        StepInputs {
            qg,
            k,
            v,
            q_norm,
            k_norm,
            positions,
            q,
            caches,
            keys,
            values,
            keys_want,
            keys_error,
            values_want,
        }
    }

    /// Keys that row `row` sees.
    pub(super) fn seen(&self, row: usize) -> usize {
        self.positions[row] as usize + 1
    }

    /// Sums of head `i` of all rows over some keys. A new key may have been rounded to the neighbour of what is expected.
    pub(super) fn sums(
        &self,
        prep: &AttentionPrep,
        b: Bounds,
        i: usize,
        keys_of: std::ops::Range<usize>,
    ) -> HeadSums {
        let (s, d) = (&prep.shape, prep.shape.head_dim);
        let (row, head) = (i / s.query_heads, i % s.query_heads);
        let (slot, kv) = (row / s.rows, head / (s.query_heads / s.kv_heads));
        let slack = Slack { bounds: b, lanes: 32, tile: false, q: 2.0 * prepared_relative(prep, b) };
        let base = self.positions[slot * s.rows] as usize;
        let start = keys_of.start;
        let part = start * s.kv_heads * d..keys_of.end * s.kv_heads * d;
        let key_error = |j: usize| if start + j < base { 0.0 } else { 2.0 * b.stored() + slack.q };
        let (keys, values) = (&self.keys[slot][part.clone()], &self.values[slot][part]);
        head_sums(s, slack, &self.q[i * d..][..d], kv, keys, values, key_error)
    }

    /// All operands but the result.
    pub(super) fn build(
        self,
        builder: crate::testing::CaseBuilder,
        want: Vec<f64>,
        error: Vec<f64>,
        all: bool,
    ) -> crate::testing::Case {
        let slots = self.caches.pool.slots();
        let values_error = vec![0.0; self.values_want.len()];
        let builder =
            builder.input(&self.qg).input(&self.k).input(&self.v).tensor(&self.q_norm).tensor(&self.k_norm);
        let builder = builder.ids(&self.positions).output(want, error);
        let builder = builder.update(&self.caches.key_pool, self.keys_want, self.keys_error);
        let builder = builder.update(&self.caches.value_pool, self.values_want, values_error).slots(&slots);
        if all { builder.build() } else { builder.touches_less().build() }
    }
}
