//! One row of activations against sixteen matrix rows where groups are a quarter of a chunk, or rows no whole pairs of chunks. Row after
//! row: a row's chunks leave sums of 32 inputs each, and only sums of 16 rows are transposed, so that lanes are outputs.

use std::arch::x86_64::*;

use super::transpose::{add_runs, transpose};
use super::{AHEAD, Avx512, mask_bytes, multiply, nibbles};
use crate::rounded::{CHUNK, Row};
use crate::simd::{Dot, OUTPUTS, Packed};

/// The products of 16 rows with x.
///
/// # Safety
/// The rows have `cols` weights and their scales and biases, x as many values, spread (see `Dot::spread`); scales has room for 32 f32 a
/// group, sums for 256 i32 of every four chunks, also begun ones; the processor has the instructions.
#[inline(always)]
pub(super) unsafe fn rows<const VNNI: bool>(
    packed: &Packed,
    (scales, sums): (*mut f32, *mut i32),
    x: &Row<'_>,
    spread: *const i8,
) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        row_sums::<VNNI>(packed, sums, spread);
        Avx512::<VNNI>::transpose_scales(packed, scales);
        match packed.group / 32 {
            1 => finish::<VNNI, 1>(sums, scales, x),
            2 => finish::<VNNI, 2>(sums, scales, x),
            _ => finish::<VNNI, 4>(sums, scales, x),
        }
    }
}

/// For each four chunks of each of 16 rows, [`add_runs`] of what they leave: row after row, then the next four chunks.
#[inline(always)]
unsafe fn row_sums<const VNNI: bool>(packed: &Packed, sums: *mut i32, x: *const i8) {
    // SAFETY: the caller's rows have `cols` weights, and x as many values, spread; sums has room for 256 i32 of every four
    // chunks, also begun ones.
    unsafe {
        let whole = packed.cols / (4 * CHUNK);
        for o in 0..OUTPUTS {
            let (mut row, mut x, mut sums) = (packed.weights[o], x, sums.add(16 * o));
            for _ in 0..whole {
                let [a, b, c, d] = load_ahead(row);
                let runs = [
                    meet::<VNNI>(a, x),
                    meet::<VNNI>(b, x.add(2 * CHUNK)),
                    meet::<VNNI>(c, x.add(4 * CHUNK)),
                    meet::<VNNI>(d, x.add(6 * CHUNK)),
                ];
                _mm512_storeu_si512(sums.cast(), add_runs(runs));
                (row, x, sums) = (row.add(4 * 64), x.add(8 * CHUNK), sums.add(16 * OUTPUTS));
            }
            let left = packed.cols / 2 - 4 * 64 * whole;
            if left > 0 {
                let mut runs = [_mm512_setzero_si512(); 4];
                for i in 0..left.div_ceil(64) {
                    let bytes = _mm512_maskz_loadu_epi8(mask_bytes(left - 64 * i), row.add(64 * i).cast());
                    runs[i] = meet::<VNNI>(bytes, x.add(2 * CHUNK * i));
                }
                _mm512_storeu_si512(sums.cast(), add_runs(runs));
            }
        }
    }
}

/// What sums of 16 rows come to, of which a group has `EACH`.
#[inline(always)]
unsafe fn finish<const VNNI: bool, const EACH: usize>(
    sums: *const i32,
    scales: *const f32,
    x: &Row<'_>,
) -> __m512 {
    let groups = x.scales.len();
    let each = OUTPUTS / EACH;
    // SAFETY: the caller's sums are 256 for every 16 / EACH groups, also begun ones, its scales 32 a group.
    unsafe {
        let mut floats = _mm512_setzero_ps();
        for step in 0..groups.div_ceil(each) {
            let mut rows = [_mm512_setzero_si512(); OUTPUTS];
            for o in 0..OUTPUTS {
                rows[o] = _mm512_loadu_si512(sums.add(16 * (OUTPUTS * step + o)).cast());
            }
            let columns = transpose(rows);
            for i in 0..each {
                let g = each * step + i;
                if g >= groups {
                    break;
                }
                let mut sums = _mm512_setzero_si512();
                for part in EACH * i..EACH * (i + 1) {
                    sums = _mm512_add_epi32(sums, columns[part % 4 * 4 + part / 4]); // see `add_runs`
                }
                let scales = scales.add(32 * g);
                let (a, sum) = (*x.scales.get_unchecked(g), *x.sums.get_unchecked(g));
                floats = Avx512::<VNNI>::scale(sums, scales, scales.add(16), a, sum, floats);
            }
        }
        floats
    }
}

/// Four chunks of weights; fetches those [`AHEAD`] of them.
#[inline(always)]
unsafe fn load_ahead(row: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's row has these bytes; fetching ahead touches nothing, wherever the address lies.
    unsafe {
        let mut chunks = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(AHEAD + 64 * i).cast());
            chunks[i] = _mm512_loadu_si512(row.add(64 * i).cast());
        }
        chunks
    }
}

/// The products of a chunk of weights with one of activations: 16 sums of 8 inputs.
#[inline(always)]
unsafe fn meet<const VNNI: bool>(bytes: __m512i, x: *const i8) -> __m512i {
    // SAFETY: the caller's chunk of activations is spread (see `Dot::spread`), and its processor has the instructions.
    unsafe {
        let x = |part: usize| _mm512_loadu_si512(x.add(64 * part).cast());
        let (even, odd) = nibbles(bytes);
        let high = multiply::<VNNI>(_mm512_setzero_si512(), even, x(0));
        let high = _mm512_slli_epi32::<8>(multiply::<VNNI>(high, odd, x(1)));
        multiply::<VNNI>(multiply::<VNNI>(high, even, x(2)), odd, x(3))
    }
}
