//! NEON: 4 lanes, with the dot products of ARMv8.2 or without.

mod vectors;

use std::arch::aarch64::*;
use std::arch::asm;

use vectors::{add_products, add_up, multiply, nibbles, transpose, transpose_eights};

use super::{Dot, OUTPUTS, Packed, Simd};
use crate::rounded::{RUN_BYTES, Row, RowShape};

/// 64-bit ARM, where NEON is part of the base; with `DOT` also its dot products of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>;

// SAFETY: NEON is part of every aarch64 target that Rust's standard library supports, and the trait's contract restricts calls
// to processors with the dot products that `DOT` names; loads and stores touch exactly 4 values.
unsafe impl<const DOT: bool> Simd for Neon<DOT> {
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
    unsafe fn fetch(line: *const u8) {
        // SAFETY: fetching touches no memory, wherever the address lies.
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) line.addr(), options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see the trait.
        unsafe { vaddvq_f32(v) }
    }
}

// SAFETY: as for `Simd`; each access stays within the values that the trait names.
unsafe impl<const DOT: bool> Dot for Neon<DOT> {
    type Sums = [int32x4_t; 4];
    type Floats = [float32x4_t; 4];
    const IN_PLACE: usize = 1;
    /// As many rows as 32 registers hold in the innermost loop, where sums of f32 wait in memory: five rows' sums of integers
    /// with dot products; three where what is between takes registers too. One row more, and compiled loops move sums to memory and
    /// back, or take more instructions a product (counted in what rustc 1.95 makes; not measured).
    const TILE: usize = if DOT { 5 } else { 3 };

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

    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
            let mut out = sums;
            for i in 0..4 {
                out[i] = multiply::<DOT>(sums[i], vld1q_s8(weights.add(16 * i).cast()), x);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn shift(sums: Self::Sums) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe {
            let mut out = sums;
            for i in 0..4 {
                out[i] = vshlq_n_s32::<8>(sums[i]);
            }
            out
        }
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
                out[i] = scale_four(sums[i], scales.add(4 * i), biases.add(4 * i), x, sum, floats[i]);
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

    #[inline(always)]
    unsafe fn widen(packed: &Packed, from: usize, panel: *mut u8) {
        // SAFETY: rows are whole units, of which those before a row's end are read; the panel has room for 16 runs of 128
        // bytes.
        unsafe {
            for unit in 0..4 {
                let at = 4 * from + UNIT * unit;
                for block in 0..4 {
                    let mut rows = [vdupq_n_u32(0); 4];
                    if at < packed.cols / 2 {
                        for o in 0..4 {
                            rows[o] = vreinterpretq_u32_u8(vld1q_u8(packed.weights[4 * block + o].add(at)));
                        }
                    }
                    let runs = transpose(rows);
                    for run in 0..4 {
                        let (even, odd) = nibbles(vreinterpretq_u8_u32(runs[run]));
                        let out = panel.add(128 * (4 * unit + run) + 16 * block);
                        vst1q_s8(out.cast(), even);
                        vst1q_s8(out.add(64).cast(), odd);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose_eight(rows: &[*const u8], g: usize, out: *mut f32) {
        // SAFETY: see the trait.
        unsafe {
            let mut all = [vdupq_n_u16(0); 8];
            for o in 0..8 {
                all[o] = vreinterpretq_u16_u8(vld1q_u8(rows[o].add(2 * g)));
            }
            let columns = transpose_eights(all);
            for i in 0..8 {
                // a bf16 is the upper half of an f32
                let (zero, out) = (vdupq_n_u16(0), out.add(32 * i));
                vst1q_f32(out, vreinterpretq_f32_u16(vzip1q_u16(zero, columns[i])));
                vst1q_f32(out.add(4), vreinterpretq_f32_u16(vzip2q_u16(zero, columns[i])));
            }
        }
    }

    /// Of each unit the four parts of its runs apart.
    #[inline(always)]
    unsafe fn spread(_shape: RowShape, row: &Row<'_>, out: *mut i8) {
        // SAFETY: rows of activations are whole chunks, so whole units, which have as many bytes in `out`.
        unsafe {
            for at in (0..row.values.len()).step_by(4 * RUN_BYTES) {
                let parts = vld4q_s32(row.values.as_ptr().add(at).cast());
                let out = out.add(at).cast::<i32>();
                vst1q_s32(out, parts.0);
                vst1q_s32(out.add(4), parts.1);
                vst1q_s32(out.add(8), parts.2);
                vst1q_s32(out.add(12), parts.3);
            }
        }
    }

    /// Four rows at a time: with vectors of 16 bytes instructions are what is scarce, more than memory, and activations that
    /// are loaded once for four rows, and sums that never leave their registers, are fewer.
    #[inline(always)]
    unsafe fn in_place(
        packed: &Packed,
        scales: *mut f32,
        _sums: *mut i32,
        x: &Row<'_>,
        spread: *const i8,
    ) -> Self::Floats {
        // SAFETY: the caller's promise; scales have just been written.
        unsafe {
            Self::transpose_scales(packed, scales);
            match packed.group / (2 * UNIT) {
                1 => products::<DOT, 1>(packed, scales, x, spread),
                2 => products::<DOT, 2>(packed, scales, x, spread),
                _ => products::<DOT, 4>(packed, scales, x, spread),
            }
        }
    }
}

/// Packed bytes that a vector holds: 32 weights of a row, as many as the smallest group.
const UNIT: usize = 16;

/// How far ahead of their use weights are fetched, in bytes: what is best on AVX-512; not measured on ARM.
const AHEAD: usize = 16 << 10;

/// [`Dot::scale`] for four outputs.
#[inline(always)]
unsafe fn scale_four(
    sums: int32x4_t,
    scales: *const f32,
    biases: *const f32,
    x: f32,
    sum: f32,
    floats: float32x4_t,
) -> float32x4_t {
    // SAFETY: the caller's scales and biases are four each.
    unsafe {
        let scales = vmulq_n_f32(vld1q_f32(scales), x);
        let scaled = vfmaq_f32(floats, vcvtq_f32_s32(sums), scales);
        vfmaq_n_f32(scaled, vld1q_f32(biases), sum)
    }
}

/// The products of 16 matrix rows, whose groups are `UNITS` units, with a row that is also spread.
#[inline(always)]
unsafe fn products<const DOT: bool, const UNITS: usize>(
    packed: &Packed,
    scales: *const f32,
    x: &Row<'_>,
    spread: *const i8,
) -> [float32x4_t; 4] {
    let bytes = UNIT * UNITS;
    // SAFETY: weights are read up to the end of their rows, x and its scales within theirs, and as many scales of the matrix
    // (the caller's promise).
    unsafe {
        let mut floats = [vdupq_n_f32(0.0); 4];
        for block in 0..OUTPUTS / 4 {
            let mut rows = [std::ptr::null(); 4];
            rows.copy_from_slice(&packed.weights[4 * block..][..4]);
            for g in 0..packed.cols / packed.group {
                if (bytes * g) % 64 < bytes {
                    for o in 0..4 {
                        Neon::<DOT>::fetch(rows[o].wrapping_add(AHEAD));
                    }
                }
                let group = add_up(meet::<DOT, UNITS>(rows, spread.add(4 * bytes * g)));
                for o in 0..4 {
                    rows[o] = rows[o].add(bytes);
                }
                let scales = scales.add(32 * g + 4 * block);
                let (a, sum) = (*x.scales.get_unchecked(g), *x.sums.get_unchecked(g));
                floats[block] = scale_four(group, scales, scales.add(16), a, sum, floats[block]);
            }
        }
        floats
    }
}

/// The products of a group of four rows of weights with one of activations: of each row four sums. High halves count 256 times.
#[inline(always)]
unsafe fn meet<const DOT: bool, const UNITS: usize>(rows: [*const u8; 4], x: *const i8) -> [int32x4_t; 4] {
    // SAFETY: the caller's rows and activations, which are spread (see `Dot::spread`), have these units; its processor has the
    // instructions that `DOT` names.
    unsafe {
        let (mut high, mut low) = ([vdupq_n_s32(0); 4], [vdupq_n_s32(0); 4]);
        // A unit adds four products of a weight below 16 with a byte to each i16. Groups have four units at most, so that
        // sums are 16 * 15 * 128 at most: less than 2^15.
        let (mut high_wide, mut low_wide) = ([vdupq_n_s16(0); 4], [vdupq_n_s16(0); 4]);
        for unit in 0..UNITS {
            let mut parts = [vdupq_n_s8(0); 4];
            for part in 0..4 {
                parts[part] = vld1q_s8(x.add(4 * UNIT * unit + UNIT * part));
            }
            for o in 0..4 {
                let (even, odd) = nibbles(vld1q_u8(rows[o].add(UNIT * unit)));
                if DOT {
                    high[o] = multiply::<DOT>(high[o], even, parts[0]);
                    low[o] = multiply::<DOT>(low[o], even, parts[2]);
                    high[o] = multiply::<DOT>(high[o], odd, parts[1]);
                    low[o] = multiply::<DOT>(low[o], odd, parts[3]);
                } else {
                    high_wide[o] = add_products(high_wide[o], even, parts[0]);
                    low_wide[o] = add_products(low_wide[o], even, parts[2]);
                    high_wide[o] = add_products(high_wide[o], odd, parts[1]);
                    low_wide[o] = add_products(low_wide[o], odd, parts[3]);
                }
            }
        }
        let mut out = low;
        for o in 0..4 {
            if !DOT {
                high[o] = vpaddlq_s16(high_wide[o]);
                low[o] = vpaddlq_s16(low_wide[o]);
            }
            out[o] = vaddq_s32(vshlq_n_s32::<8>(high[o]), low[o]);
        }
        out
    }
}
