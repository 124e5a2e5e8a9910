//! Attention of the query heads of one KV head over a block of keys, with a running softmax (Milakov and Gimelshein
//! 2018): blocks come in the order of their positions, always with the same borders.

use crate::simd::{Simd, dot, exp, fma1, sigmoid};

/// The most keys of a block: a page of the cache.
pub(crate) const BLOCK_KEYS: usize = lily_kernels::attention::PAGE_TOKENS;

/// Query heads whose scores are computed together, so that a key is loaded once for all of them.
const HEADS_AT_ONCE: usize = 4;

/// Keys and values of one KV head, [keys, head_dim] each.
pub(crate) struct Block<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    /// 1 / sqrt(head_dim).
    pub(crate) scale: f32,
}

/// The query heads that share a KV head, and their running softmax.
pub(crate) struct Heads<'a> {
    /// [heads, head_dim].
    pub(crate) q: &'a [f32],
    pub(crate) head_dim: usize,
    /// The largest score so far, `[heads]`; starts at -infinity.
    pub(crate) max: &'a mut [f32],
    /// Sum of exp(score - max), `[heads]`.
    pub(crate) sum: &'a mut [f32],
    /// Sum of exp(score - max) * value, [heads, head_dim].
    pub(crate) mix: &'a mut [f32],
}

/// Takes a block of keys into the running softmax of each head.
#[inline(always)]
pub(crate) fn attend_block<S: Simd>(block: &Block<'_>, heads: &mut Heads<'_>) {
    let d = heads.head_dim;
    let (keys, count) = (block.keys.len() / d, heads.max.len());
    assert!(keys <= BLOCK_KEYS && block.values.len() == block.keys.len());
    let mut h = 0;
    while h < count {
        let n = (count - h).min(HEADS_AT_ONCE);
        let mut scores = [[0.0f32; BLOCK_KEYS]; HEADS_AT_ONCE];
        if n == HEADS_AT_ONCE {
            scores_of_four::<S>(&heads.q[h * d..][..4 * d], block.keys, d, &mut scores);
        } else {
            for i in 0..n {
                for (key, score) in block.keys.chunks_exact(d).zip(&mut scores[i]) {
                    *score = dot::<S>(&heads.q[(h + i) * d..][..d], key);
                }
            }
        }
        for i in 0..n {
            let scores = &mut scores[i][..keys];
            let (max, sum) = (&mut heads.max[h + i], &mut heads.sum[h + i]);
            let mix = &mut heads.mix[(h + i) * d..][..d];
            weigh::<S>(scores, block.scale, max, sum, mix);
            add_values::<S>(scores, block.values, mix);
        }
        h += n;
    }
}

/// Four dot products a key, each summed as [`dot`] sums, so that a head's bits do not depend on its neighbours.
#[inline(always)]
fn scores_of_four<S: Simd>(
    q: &[f32],
    keys: &[f32],
    d: usize,
    scores: &mut [[f32; BLOCK_KEYS]; HEADS_AT_ONCE],
) {
    let whole = d - d % S::LANES;
    for (j, key) in keys.chunks_exact(d).enumerate() {
        // SAFETY: loads end at or before `whole` <= d in the key and in each of the four rows of q; the processor has `S`.
        let mut sums = unsafe {
            let mut acc = [S::splat(0.0); HEADS_AT_ONCE];
            let mut e = 0;
            while e < whole {
                let k = S::load(key.as_ptr().add(e));
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::fma(S::load(q.as_ptr().add(i * d + e)), k, *acc);
                }
                e += S::LANES;
            }
            let mut sums = [0.0; HEADS_AT_ONCE];
            for i in 0..HEADS_AT_ONCE {
                sums[i] = S::sum(acc[i]);
            }
            sums
        };
        for e in whole..d {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = fma1::<S>(q[i * d + e], key[e], *sum);
            }
        }
        for i in 0..HEADS_AT_ONCE {
            scores[i][j] = sums[i];
        }
    }
}

/// Turns scores into weights relative to the running maximum, and scales what was summed before to it.
#[inline(always)]
fn weigh<S: Simd>(scores: &mut [f32], scale: f32, max: &mut f32, sum: &mut f32, mix: &mut [f32]) {
    let mut top = *max;
    for s in scores.iter_mut() {
        *s *= scale;
        top = top.max(*s);
    }
    let fade = exp::<S>(*max - top);
    *max = top;
    for s in scores.iter_mut() {
        *s = exp::<S>(*s - top);
    }
    let mut total = 0.0;
    for s in scores.iter() {
        total += s;
    }
    *sum = *sum * fade + total;
    for m in mix {
        *m *= fade;
    }
}

/// mix += sum over keys of weight * value, keys in order.
#[inline(always)]
fn add_values<S: Simd>(weights: &[f32], values: &[f32], mix: &mut [f32]) {
    const VECTORS: usize = 4;
    let d = mix.len();
    let mut e = 0;
    // SAFETY: a step reads and writes VECTORS * LANES values from e on, all below d; the processor has `S`.
    unsafe {
        while e + VECTORS * S::LANES <= d {
            let mut acc = [S::splat(0.0); VECTORS];
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = S::load(mix.as_ptr().add(e + i * S::LANES));
            }
            for (w, value) in weights.iter().zip(values.chunks_exact(d)) {
                let w = S::splat(*w);
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = S::fma(w, S::load(value.as_ptr().add(e + i * S::LANES)), *acc);
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                S::store(mix.as_mut_ptr().add(e + i * S::LANES), *acc);
            }
            e += VECTORS * S::LANES;
        }
    }
    for (w, value) in weights.iter().zip(values.chunks_exact(d)) {
        for (m, v) in mix[e..].iter_mut().zip(&value[e..]) {
            *m = fma1::<S>(*w, *v, *m);
        }
    }
}

/// For each head: out = mix / sum * sigmoid(gate); out is [heads, head_dim].
#[inline(always)]
pub(crate) fn finish_heads<S: Simd>(heads: &Heads<'_>, gates: &[&[f32]], out: &mut [f32]) {
    let d = heads.head_dim;
    for (h, (gate, out)) in gates.iter().zip(out.chunks_exact_mut(d)).enumerate() {
        let scale = 1.0 / heads.sum[h];
        for ((m, g), out) in heads.mix[h * d..][..d].iter().zip(*gate).zip(out) {
            *out = m * scale * sigmoid::<S>(*g);
        }
    }
}
