//! NEON: 4 lanes.

use std::arch::aarch64::*;

use super::{Dot, Simd};

/// 64-bit ARM, where NEON is part of the base.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

// SAFETY: NEON is part of every aarch64 target that Rust's standard library supports; loads and stores touch exactly 4
// values.
unsafe impl Simd for Neon {
    const LANES: usize = 4;
    const FUSED: bool = true;
    type V = float32x4_t;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { vdupq_n_f32(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: see the trait.
        unsafe { vld1q_f32(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: see the trait.
        unsafe { vst1q_f32(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { vmulq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the trait.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see the trait.
        unsafe { vaddvq_f32(v) }
    }
}

// SAFETY: as for `Simd`; each access stays within the values that the trait names.
unsafe impl Dot for Neon {
    type Sums = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    /// Two rows' sums of integers and of f32 fill sixteen of 32 registers.
    const TILE: usize = 2;

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { [vdupq_n_s32(0); 4] }
    }

    #[inline(always)]
    unsafe fn no_floats() -> Self::Floats {
        // SAFETY: see the trait.
        unsafe { [vdupq_n_f32(0.0); 4] }
    }

    /// Sums of two products are below 2^15, as weights are below 16, which also makes them signed numbers.
    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            let mut out = sums;
            for i in 0..4 {
                let w = vld1q_s8(weights.add(16 * i).cast());
                let pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
                out[i] = vpadalq_s16(sums[i], pairs);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn shift(sums: Self::Sums) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { sums.map(|s| vshlq_n_s32(s, 8)) }
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
            for i in 0..4 {
                let scales = vmulq_n_f32(vld1q_f32(scales.add(4 * i)), x);
                let scaled = vfmaq_f32(floats[i], vcvtq_f32_s32(sums[i]), scales);
                out[i] = vfmaq_n_f32(scaled, vld1q_f32(biases.add(4 * i)), sum);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn store_floats(p: *mut f32, floats: Self::Floats) {
        // SAFETY: see the trait.
        unsafe {
            for i in 0..4 {
                vst1q_f32(p.add(4 * i), floats[i]);
            }
        }
    }
}
