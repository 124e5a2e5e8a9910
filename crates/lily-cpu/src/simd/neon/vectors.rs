//! What NEON has in several instructions.

use std::arch::aarch64::*;
use std::arch::asm;

/// The low and the high four bits of each byte: weights with even numbers, and odd ones, below 16 and so signed bytes too.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: uint8x16_t) -> (int8x16_t, int8x16_t) {
    // SAFETY: NEON is part of the base.
    unsafe {
        let even = vandq_u8(bytes, vdupq_n_u8(15));
        (vreinterpretq_s8_u8(even), vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)))
    }
}

/// Adds to each i32 the products of four bytes with four. Without dot products, sums of two must fit i16: they do for weights
/// below 16.
#[inline(always)]
pub(super) unsafe fn multiply<const DOT: bool>(
    sums: int32x4_t,
    weights: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
    // SAFETY: the caller's processor has the instructions that `DOT` names; this one touches registers alone.
    unsafe {
        if DOT {
            // vdotq_s32 is not stable
            let mut out = sums;
            asm!(
                "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
                inout(vreg) out,
                in(vreg) weights,
                in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
            out
        } else {
            let (low, high) = (vmull_s8(vget_low_s8(weights), vget_low_s8(x)), vmull_high_s8(weights, x));
            vpadalq_s16(sums, vpaddq_s16(low, high))
        }
    }
}

/// Adds to each i16 two products.
#[inline(always)]
pub(super) unsafe fn add_products(sums: int16x8_t, weights: int8x16_t, x: int8x16_t) -> int16x8_t {
    // SAFETY: NEON is part of the base.
    unsafe { vmlal_high_s8(vmlal_s8(sums, vget_low_s8(weights), vget_low_s8(x)), weights, x) }
}

/// The sum of each vector, in a lane of its own.
#[inline(always)]
pub(super) unsafe fn add_up(all: [int32x4_t; 4]) -> int32x4_t {
    // SAFETY: NEON is part of the base.
    unsafe { vpaddq_s32(vpaddq_s32(all[0], all[1]), vpaddq_s32(all[2], all[3])) }
}

/// The transpose of 4 rows of 4 values of 32 bits.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [uint32x4_t; 4]) -> [uint32x4_t; 4] {
    // SAFETY: NEON is part of the base.
    unsafe {
        // of two rows columns 0 and 2, columns 1 and 3
        let (a, b) = (vtrn1q_u32(rows[0], rows[1]), vtrn1q_u32(rows[2], rows[3]));
        let (c, d) = (vtrn2q_u32(rows[0], rows[1]), vtrn2q_u32(rows[2], rows[3]));
        let (a, b) = (vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b));
        let (c, d) = (vreinterpretq_u64_u32(c), vreinterpretq_u64_u32(d));
        [
            vreinterpretq_u32_u64(vtrn1q_u64(a, b)),
            vreinterpretq_u32_u64(vtrn1q_u64(c, d)),
            vreinterpretq_u32_u64(vtrn2q_u64(a, b)),
            vreinterpretq_u32_u64(vtrn2q_u64(c, d)),
        ]
    }
}

/// The transpose of 8 rows of 8 values of 16 bits.
#[inline(always)]
pub(super) unsafe fn transpose_eights(rows: [uint16x8_t; 8]) -> [uint16x8_t; 8] {
    // SAFETY: NEON is part of the base.
    unsafe {
        // of two rows even columns, odd columns
        let (mut even, mut odd) = ([vdupq_n_u32(0); 4], [vdupq_n_u32(0); 4]);
        for i in 0..4 {
            even[i] = vreinterpretq_u32_u16(vtrn1q_u16(rows[2 * i], rows[2 * i + 1]));
            odd[i] = vreinterpretq_u32_u16(vtrn2q_u16(rows[2 * i], rows[2 * i + 1]));
        }
        let (even, odd) = (transpose(even), transpose(odd));
        let mut out = [vdupq_n_u16(0); 8];
        for i in 0..4 {
            out[2 * i] = vreinterpretq_u16_u32(even[i]);
            out[2 * i + 1] = vreinterpretq_u16_u32(odd[i]);
        }
        out
    }
}
