//! NEON: 4 lanes.

use std::arch::aarch64::*;

use super::Simd;

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
