//! Transposes, and vectors of bf16 pairs.

use std::arch::x86_64::*;

use crate::simd::Packed;

/// The transpose of 16 rows of 16 values of 32 bits.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let zero = _mm512_setzero_si512();
        // of 4 rows, within each quarter: column c of the quarter
        let mut fours = [[zero; 4]; 4];
        for i in 0..4 {
            fours[i] = transpose_within([rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]]);
        }
        let mut out = [zero; 16];
        for column in 0..4 {
            let quarters =
                transpose_quarters([fours[0][column], fours[1][column], fours[2][column], fours[3][column]]);
            for (quarter, values) in quarters.into_iter().enumerate() {
                out[4 * quarter + column] = values;
            }
        }
        out
    }
}

/// Up to 8 values of 16 bits from byte `from` on of each row, as pairs: of the first two, lanes are rows, and so on.
#[inline(always)]
pub(super) unsafe fn transpose_eights(rows: &[*const u8; 16], from: usize, left: usize) -> [__m512i; 4] {
    // SAFETY: the caller's rows have `left` values there, and its processor has AVX-512.
    unsafe {
        let load = |row: usize| {
            let at = rows[row].add(from);
            if left == 8 {
                _mm_loadu_si128(at.cast())
            } else {
                _mm_maskz_loadu_epi16((1 << left) - 1, at.cast())
            }
        };
        let mut fours = [_mm512_setzero_si512(); 4];
        for (i, four) in fours.iter_mut().enumerate() {
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(i)), load(i + 4));
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(i + 8)), load(i + 12));
            *four = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        }
        transpose_within(fours)
    }
}

/// Within each 128 bits, the transpose of 4 rows of 4 values of 32 bits.
#[inline(always)]
pub(super) unsafe fn transpose_within(rows: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let (a, b) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3]));
        let (c, d) = (_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3]));
        [
            _mm512_unpacklo_epi64(a, b),
            _mm512_unpackhi_epi64(a, b),
            _mm512_unpacklo_epi64(c, d),
            _mm512_unpackhi_epi64(c, d),
        ]
    }
}

/// The transpose of 4 rows of 4 values of 128 bits.
#[inline(always)]
pub(super) unsafe fn transpose_quarters(rows: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let [a, b, c, d] = rows;
        let (ab_low, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
        let (cd_low, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
            _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
        ]
    }
}

/// 16 bytes from byte `from` on of each of 16 rows: of every 4 bytes, a vector whose lanes are the rows.
#[inline(always)]
pub(in crate::simd) unsafe fn transpose_parts(packed: &Packed, from: usize) -> [__m512i; 4] {
    // SAFETY: the caller's rows have these bytes, and its processor AVX-512.
    unsafe {
        let mut fours = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let load = |row: usize| _mm_loadu_si128(packed.weights[row].add(from).cast());
            let all = _mm512_broadcast_i32x4(load(i));
            let all = _mm512_mask_broadcast_i32x4(all, 0x00f0, load(i + 4));
            let all = _mm512_mask_broadcast_i32x4(all, 0x0f00, load(i + 8));
            fours[i] = _mm512_mask_broadcast_i32x4(all, 0xf000, load(i + 12));
        }
        transpose_within(fours)
    }
}

/// Of pairs of bf16, a lane a matrix row, the first `groups` as f32: 16 of a group, the next group's 32 behind.
#[inline(always)]
pub(super) unsafe fn store_pair(both: __m512i, groups: usize, out: *mut f32) {
    // SAFETY: the caller's memory has room for `groups` of them, and its processor AVX-512.
    unsafe {
        if groups > 0 {
            _mm512_storeu_ps(out, of_pair(both, 0));
        }
        if groups > 1 {
            _mm512_storeu_ps(out.add(32), of_pair(both, 1));
        }
    }
}

/// One of two bf16 in each lane, as f32: a bf16 is the upper half of an f32, and the first of a pair is the lower half.
#[inline(always)]
pub(super) unsafe fn of_pair(pair: __m512i, which: usize) -> __m512 {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        _mm512_castsi512_ps(match which {
            0 => _mm512_slli_epi32(pair, 16),
            _ => _mm512_and_si512(pair, _mm512_set1_epi32(0xffff_0000_u32 as i32)),
        })
    }
}

/// For each quarter of the lanes the sums of its 4 values, of all four vectors.
#[inline(always)]
pub(super) unsafe fn add_runs(all: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let pair = |a: __m512i, b: __m512i| {
            _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
        };
        let (a, b) = (pair(all[0], all[1]), pair(all[2], all[3]));
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }
}
