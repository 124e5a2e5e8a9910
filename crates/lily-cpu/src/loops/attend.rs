//! Attention of the query heads of one KV head over a block of keys, with a running softmax (Milakov and Gimelshein
//! 2018): blocks come in the order of their positions, always with the same borders.

use crate::simd::{Simd, dot, exp, fma1, sigmoid, sum_all};

/// The most keys of a block: a page of the cache.
pub(crate) const BLOCK_KEYS: usize = lily_kernels::attention::PAGE_TOKENS;

/// Queries whose scores are computed together, so that a key is loaded once for all of them.
const QUERIES_AT_ONCE: usize = 4;

/// The most queries of a call.
pub(crate) const QUERIES: usize = 32;

/// Keys that meet all queries before the next do: 16 keys of 256 f32 are half of a first-level cache.
const KEYS_AT_ONCE: usize = 16;

type Scores = [[f32; BLOCK_KEYS]; QUERIES];

/// Keys and values of one KV head, [keys, head_dim] each.
pub(crate) struct Block<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    /// 1 / sqrt(head_dim).
    pub(crate) scale: f32,
}

/// Queries that share a KV head, and their running softmax: query heads of one row, or of several that all see the same blocks.
pub(crate) struct Heads<'a> {
    /// [queries, head_dim].
    pub(crate) q: &'a [f32],
    pub(crate) head_dim: usize,
    /// The largest score so far, `[queries]`; starts at -infinity.
    pub(crate) max: &'a mut [f32],
    /// Sum of exp(score - max), `[queries]`.
    pub(crate) sum: &'a mut [f32],
    /// Sum of exp(score - max) * value, [queries, head_dim].
    pub(crate) mix: &'a mut [f32],
}

impl<'a> Heads<'a> {
    /// Some of the queries.
    pub(crate) fn part(&mut self, queries: std::ops::Range<usize>) -> Heads<'_> {
        let d = self.head_dim;
        let wide = queries.start * d..queries.end * d;
        Heads {
            q: &self.q[wide.clone()],
            head_dim: d,
            max: &mut self.max[queries.clone()],
            sum: &mut self.sum[queries],
            mix: &mut self.mix[wide],
        }
    }
}

/// Takes a block of keys into the running softmax of each query, of which there are at most [`QUERIES`]. A query's bits do not
/// depend on its neighbours.
#[inline(always)]
pub(crate) fn attend_block<S: Simd>(block: &Block<'_>, heads: &mut Heads<'_>) {
    let d = heads.head_dim;
    let (keys, count) = (block.keys.len() / d, heads.max.len());
    assert!(keys <= BLOCK_KEYS && block.values.len() == block.keys.len());
    assert!(count <= QUERIES && heads.q.len() == count * d && heads.mix.len() == count * d);
    let mut scores: Scores = [[0.0; BLOCK_KEYS]; QUERIES];
    for (i, some) in block.keys.chunks(KEYS_AT_ONCE * d).enumerate() {
        for h in (0..count).step_by(QUERIES_AT_ONCE) {
            let q = &heads.q[h * d..(h + QUERIES_AT_ONCE).min(count) * d];
            score::<S>(q, some, d, &mut scores[h..], i * KEYS_AT_ONCE);
        }
    }
    for h in 0..count {
        let mix = &mut heads.mix[h * d..][..d];
        weigh::<S>(&mut scores[h][..keys], block.scale, &mut heads.max[h], &mut heads.sum[h], mix);
    }
    add_values::<S>(&scores[..count], block.values, d, heads.mix);
}

/// Dot products of up to [`QUERIES_AT_ONCE`] queries with some keys, each summed as [`dot`] sums: to `scores[query][at + key]`.
#[inline(always)]
fn score<S: Simd>(q: &[f32], keys: &[f32], d: usize, scores: &mut [[f32; BLOCK_KEYS]], at: usize) {
    let count = keys.len() / d;
    let mut j = 0;
    if d.is_multiple_of(S::LANES) && q.len() == QUERIES_AT_ONCE * d {
        while j + 4 <= count {
            score_tile::<S>(q, &keys[j * d..][..4 * d], d, scores, at + j);
            j += 4;
        }
    }
    for (j, key) in keys.chunks_exact(d).enumerate().skip(j) {
        for (q, scores) in q.chunks_exact(d).zip(&mut *scores) {
            scores[at + j] = dot::<S>(q, key);
        }
    }
}

/// Four queries and four keys, whole vectors each.
#[inline(always)]
fn score_tile<S: Simd>(q: &[f32], keys: &[f32], d: usize, scores: &mut [[f32; BLOCK_KEYS]], at: usize) {
    assert!(q.len() == 4 * d && keys.len() == 4 * d);
    // SAFETY: loads end at d, a whole number of vectors, in each of four rows (asserted); the processor has `S`.
    let sums = unsafe {
        let mut acc = [S::splat(0.0); 16];
        for e in (0..d).step_by(S::LANES) {
            let mut k = [S::splat(0.0); 4];
            for j in 0..4 {
                k[j] = S::load(keys.as_ptr().add(j * d + e));
            }
            for i in 0..4 {
                let q = S::load(q.as_ptr().add(i * d + e));
                for j in 0..4 {
                    acc[4 * i + j] = S::fma(q, k[j], acc[4 * i + j]);
                }
            }
        }
        S::sums(acc)
    };
    for i in 0..4 {
        scores[i][at..at + 4].copy_from_slice(&sums[4 * i..4 * i + 4]);
    }
}

/// Turns scores into weights relative to the running maximum, and scales what was summed before to it.
#[inline(always)]
fn weigh<S: Simd>(scores: &mut [f32], scale: f32, max: &mut f32, sum: &mut f32, mix: &mut [f32]) {
    let mut tops = [*max; 16];
    for scores in scores.chunks_mut(16) {
        for (s, top) in scores.iter_mut().zip(&mut tops) {
            *s *= scale;
            *top = if *s > *top { *s } else { *top };
        }
    }
    let top = tops.into_iter().fold(*max, f32::max);
    let fade = exp::<S>(*max - top);
    *max = top;
    for s in scores.iter_mut() {
        *s = exp::<S>(*s - top);
    }
    let total = sum_all::<S>(scores);
    *sum = *sum * fade + total;
    for m in mix {
        *m *= fade;
    }
}

/// For each query: mix += sum over keys of weight * value, keys in order.
#[inline(always)]
fn add_values<S: Simd>(weights: &[[f32; BLOCK_KEYS]], values: &[f32], d: usize, mix: &mut [f32]) {
    const VECTORS: usize = 4;
    let step = VECTORS * S::LANES;
    let whole = d - d % step;
    for e in (0..whole).step_by(step) {
        let mut h = 0;
        while h + QUERIES_AT_ONCE <= weights.len() {
            value_tile::<S, QUERIES_AT_ONCE, VECTORS>(&weights[h..], values, d, e, &mut mix[h * d..]);
            h += QUERIES_AT_ONCE;
        }
        for h in h..weights.len() {
            value_tile::<S, 1, VECTORS>(&weights[h..], values, d, e, &mut mix[h * d..]);
        }
    }
    for (weights, mix) in weights.iter().zip(mix.chunks_exact_mut(d)) {
        for (w, value) in weights.iter().zip(values.chunks_exact(d)) {
            for (m, v) in mix[whole..].iter_mut().zip(&value[whole..]) {
                *m = fma1::<S>(*w, *v, *m);
            }
        }
    }
}

/// Values `e..e + V * LANES` of Q queries.
#[inline(always)]
fn value_tile<S: Simd, const Q: usize, const V: usize>(
    weights: &[[f32; BLOCK_KEYS]],
    values: &[f32],
    d: usize,
    e: usize,
    mix: &mut [f32],
) {
    let keys = values.len() / d;
    assert!(weights.len() >= Q && keys <= BLOCK_KEYS && mix.len() >= Q * d && e + V * S::LANES <= d);
    // SAFETY: V vectors from e on lie within each row of mix and of values (asserted); the processor has `S`.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; Q];
        for q in 0..Q {
            for i in 0..V {
                acc[q][i] = S::load(mix.as_ptr().add(q * d + e + i * S::LANES));
            }
        }
        for j in 0..keys {
            let mut value = [S::splat(0.0); V];
            for i in 0..V {
                value[i] = S::load(values.as_ptr().add(j * d + e + i * S::LANES));
            }
            for q in 0..Q {
                let w = S::splat(*weights.get_unchecked(q).get_unchecked(j));
                for i in 0..V {
                    acc[q][i] = S::fma(w, value[i], acc[q][i]);
                }
            }
        }
        for q in 0..Q {
            for i in 0..V {
                S::store(mix.as_mut_ptr().add(q * d + e + i * S::LANES), acc[q][i]);
            }
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

#[cfg(test)]
mod tests {
    use lily_kernels::random::Random;

    use super::{BLOCK_KEYS, Block, Heads, QUERIES};
    use crate::simd::{Isa, Loops};

    /// Head sizes of whole vectors and not, whole blocks of keys and begun ones, queries around those that are taken together.
    #[test]
    fn queries_together_have_the_bits_of_each_alone() {
        let mut random = Random::new(6);
        for isa in Isa::available() {
            let loops = Loops::new(isa).unwrap();
            for (d, keys, queries) in [
                (256, BLOCK_KEYS, QUERIES),
                (256, 63, 7),
                (64, 17, 4),
                (72, BLOCK_KEYS, 5),
                (20, 3, 9),
                (128, 1, 1),
            ] {
                let [a, b] = [(); 2].map(|()| [(); 2].map(|()| random.values(keys * d, 1.0)));
                let q = random.values(queries * d, 1.0);
                let run = |from: usize, count: usize| {
                    let (mut max, mut sum) = (vec![f32::NEG_INFINITY; count], vec![0.0; count]);
                    let mut mix = vec![0.0; count * d];
                    for [keys, values] in [&a, &b] {
                        let block = Block { keys, values, scale: 0.125 };
                        let q = &q[from * d..][..count * d];
                        let mut heads = Heads { q, head_dim: d, max: &mut max, sum: &mut sum, mix: &mut mix };
                        // SAFETY: the loops belong to this processor.
                        unsafe { (loops.attend_block)(&block, &mut heads) };
                    }
                    mix.chunks(d)
                        .zip(max.iter().zip(&sum))
                        .map(|(mix, (max, sum))| {
                            mix.iter().chain([max, sum]).map(|x| x.to_bits()).collect::<Vec<_>>()
                        })
                        .collect::<Vec<_>>()
                };
                let alone: Vec<_> = (0..queries).flat_map(|i| run(i, 1)).collect();
                let name = isa.name();
                assert!(run(0, queries) == alone, "{name}, {queries} queries of {d}, {keys} keys");
            }
        }
    }
}
