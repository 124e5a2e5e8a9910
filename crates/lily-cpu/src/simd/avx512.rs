//! AVX-512: 16 lanes, and 4-bit tiles by table lookup.

use std::arch::x86_64::*;

use lily_kernels::bf16_to_f32;

use super::Simd;

/// x86-64 with AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY: the trait's contract restricts calls to processors with AVX-512; loads and stores are unaligned and touch
// exactly 16 values.
unsafe impl Simd for Avx512 {
    const LANES: usize = 16;
    const FUSED: bool = true;
    const TILE4: bool = true;
    type V = __m512;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: see the trait.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see the trait.
        unsafe { _mm512_reduce_add_ps(v) }
    }

    /// A 4-bit weight has 16 possible values per group: scale * 0 + bias ... scale * 15 + bias. They fill one vector,
    /// and a lane permutation, which looks only at the low four bits of each index, picks 16 weights at once: shift,
    /// permute, multiply-add, without masks or conversions.
    #[inline(always)]
    unsafe fn tile4<const O: usize, const R: usize>(
        weights: [*const u8; O],
        scales: [*const u8; O],
        biases: [*const u8; O],
        group: usize,
        cols: usize,
        panel: *const f32,
    ) -> [[f32; R]; O] {
        // SAFETY: the caller's rows hold `cols` packed values with their scales and biases, and its panel R rows of
        // `cols`; `cols` is a multiple of `group`, and `group` of 16, so every access is inside.
        unsafe {
            let counts = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            let shifts = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
            let mut acc = [[_mm512_setzero_ps(); R]; O];
            for g in 0..cols / group {
                let value = |p: *const u8| bf16_to_f32(p.cast::<u16>().add(g).read_unaligned());
                let mut table = [counts; O];
                for o in 0..O {
                    let (scale, bias) = (_mm512_set1_ps(value(scales[o])), _mm512_set1_ps(value(biases[o])));
                    table[o] = _mm512_fmadd_ps(counts, scale, bias);
                }
                for i in (g * group..(g + 1) * group).step_by(16) {
                    let mut x = [_mm512_setzero_ps(); R];
                    for r in 0..R {
                        x[r] = _mm512_loadu_ps(panel.add(r * cols + i));
                    }
                    for o in 0..O {
                        let packed = weights[o].add(i / 2).cast::<i64>().read_unaligned();
                        let index = _mm512_srlv_epi32(_mm512_set1_epi64(packed), shifts);
                        let w = _mm512_permutexvar_ps(index, table[o]);
                        for r in 0..R {
                            acc[o][r] = _mm512_fmadd_ps(w, x[r], acc[o][r]);
                        }
                    }
                }
            }
            let mut out = [[0.0; R]; O];
            for o in 0..O {
                for r in 0..R {
                    out[o][r] = _mm512_reduce_add_ps(acc[o][r]);
                }
            }
            out
        }
    }
}
