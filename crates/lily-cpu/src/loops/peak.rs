//! What a core can do at most: loops that compute nothing of use.

use crate::simd::Simd;

/// Multiply-adds made by [`multiply_adds`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Made {
    /// Their number, of single values.
    pub(crate) count: u64,
    /// What came out; whoever reads it keeps the loop from being left out.
    pub(crate) sum: f32,
}

/// From how many places memory is read at the same time. Which is faster depends on the processor's prefetchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    One,
    Four,
}

/// The sum of the values, each read once.
#[inline(always)]
pub(crate) fn read_through<S: Simd>(values: &[f32], streams: Streams, sum: &mut f32) {
    *sum = match streams {
        Streams::One => read_streams::<S, 1, 8>(values),
        Streams::Four => read_streams::<S, 4, 2>(values),
    };
}

/// `N` streams of `U` vectors a turn. Each vector is summed apart, so that the memory decides and not the latency of an
/// addition.
#[inline(always)]
fn read_streams<S: Simd, const N: usize, const U: usize>(values: &[f32]) -> f32 {
    let step = U * S::LANES;
    let stream = values.len() / N / step * step;
    // SAFETY: stream n ends at or before (n + 1) * `stream`, so the last one within the slice; the caller runs on a
    // processor of `S`.
    let read = unsafe {
        let mut sums = [[S::splat(0.0); U]; N];
        let mut at = 0;
        while at < stream {
            for (n, sums) in sums.iter_mut().enumerate() {
                for (u, sum) in sums.iter_mut().enumerate() {
                    let from = values.as_ptr().add(n * stream + at + u * S::LANES);
                    *sum = S::add(*sum, S::load(from));
                }
            }
            at += step;
        }
        sums.iter().flatten().map(|v| S::sum(*v)).sum::<f32>()
    };
    read + values[N * stream..].iter().sum::<f32>()
}

/// `rounds` multiply-adds of float32 on each of many vectors in registers.
#[inline(always)]
pub(crate) fn multiply_adds<S: Simd>(rounds: usize, factor: f32, made: &mut Made) {
    // At least latency times units (4 x 2 on x86, 4 x 4 on Apple's cores), and fewer than there are registers: AVX2 and
    // SSE have 16, the others 32.
    if S::LANES == 8 { chains::<S, 12>(rounds, factor, made) } else { chains::<S, 24>(rounds, factor, made) }
}

#[inline(always)]
fn chains<S: Simd, const N: usize>(rounds: usize, factor: f32, made: &mut Made) {
    // SAFETY: no pointers; the caller runs on a processor of `S`.
    unsafe {
        let (factor, one) = (S::splat(factor), S::splat(1.0));
        // Different values, or they would be one chain.
        let mut chain: [S::V; N] = std::array::from_fn(|i| S::splat(i as f32));
        for _ in 0..rounds {
            for value in &mut chain {
                *value = S::fma(*value, factor, one);
            }
        }
        made.sum = chain.iter().map(|v| S::sum(*v)).sum();
    }
    made.count = (rounds * N * S::LANES) as u64;
}
