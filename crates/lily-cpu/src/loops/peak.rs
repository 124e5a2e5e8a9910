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

/// Vectors that are summed apart, so that the memory decides and not the latency of an addition.
const SUMS: usize = 8;

/// The sum of the values, each read once, from the first to the last.
#[inline(always)]
pub(crate) fn read_through<S: Simd>(values: &[f32], sum: &mut f32) {
    let step = SUMS * S::LANES;
    let whole = values.len() - values.len() % step;
    // SAFETY: every load ends at or before `whole`, within the slice; the caller runs on a processor of `S`.
    let read = unsafe {
        let mut sums = [S::splat(0.0); SUMS];
        let mut at = 0;
        while at < whole {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = S::add(*sum, S::load(values.as_ptr().add(at + i * S::LANES)));
            }
            at += step;
        }
        sums.iter().map(|v| S::sum(*v)).sum::<f32>()
    };
    *sum = read + values[whole..].iter().sum::<f32>();
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
