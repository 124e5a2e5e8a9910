//! AVX2 with FMA: 8 lanes.

use std::arch::x86_64::*;

use super::{Dot, Simd};

/// x86-64 with AVX2 and FMA.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

// SAFETY: the trait's contract restricts calls to processors with AVX2 and FMA; loads and stores are unaligned and touch
// exactly 8 values.
unsafe impl Simd for Avx2 {
    const LANES: usize = 8;
    const FUSED: bool = true;
    type V = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: see the trait.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see the trait.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)))
        }
    }
}

// SAFETY: as for `Simd`; each access stays within the values that the trait names.
unsafe impl Dot for Avx2 {
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];
    /// Three rows' sums of integers and of f32 fill twelve of 16 registers.
    const TILE: usize = 3;

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { [_mm256_setzero_si256(); 2] }
    }

    #[inline(always)]
    unsafe fn no_floats() -> Self::Floats {
        // SAFETY: see the trait.
        unsafe { [_mm256_setzero_ps(); 2] }
    }

    /// Sums of two products are below 2^15, as weights are below 16.
    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let mut out = sums;
            for i in 0..2 {
                let pairs = _mm256_maddubs_epi16(_mm256_loadu_si256(weights.add(32 * i).cast()), x);
                out[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn shift(sums: Self::Sums) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { [_mm256_slli_epi32(sums[0], 8), _mm256_slli_epi32(sums[1], 8)] }
    }

    #[inline(always)]
    unsafe fn scale(
        sums: Self::Sums,
        scales: *const f32,
        biases: *const f32,
        x: f32,
        sum: f32,
        floats: Self::Floats,
    ) -> Self::Floats {
        // SAFETY: see the trait.
        unsafe {
            let mut out = floats;
            for i in 0..2 {
                let scales = _mm256_mul_ps(_mm256_loadu_ps(scales.add(8 * i)), _mm256_set1_ps(x));
                let scaled = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[i]), scales, floats[i]);
                out[i] = _mm256_fmadd_ps(_mm256_loadu_ps(biases.add(8 * i)), _mm256_set1_ps(sum), scaled);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn store_floats(p: *mut f32, floats: Self::Floats) {
        // SAFETY: see the trait.
        unsafe {
            _mm256_storeu_ps(p, floats[0]);
            _mm256_storeu_ps(p.add(8), floats[1]);
        }
    }
}
