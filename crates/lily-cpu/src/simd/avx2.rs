//! AVX2 with FMA: 8 lanes.

use std::arch::x86_64::*;

use super::dot::spread_run;
use super::{Dot, OUTPUTS, Packed, Simd};
use crate::rounded::{RUN_BYTES, Row, RowShape};

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
    unsafe fn widen8(p: *const u8) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn fetch(line: *const u8) {
        // SAFETY: fetching touches no memory, wherever the address lies; the processor has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
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
    const IN_PLACE: usize = 1;
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

    #[inline(always)]
    unsafe fn widen(packed: &Packed, from: usize, panel: *mut u8) {
        // SAFETY: a row's bytes from 4 * from on are read up to its end; the panel has room for 16 runs of 128 bytes.
        unsafe {
            for unit in 0..2 {
                let at = 4 * from + UNIT * unit;
                for half in 0..2 {
                    let mut rows = [_mm256_setzero_si256(); 8];
                    for o in 0..8 {
                        rows[o] = load_unit(packed, 8 * half + o, at);
                    }
                    for (run, bytes) in transpose(rows).into_iter().enumerate() {
                        let (even, odd) = nibbles(bytes);
                        let out = panel.add(128 * (8 * unit + run) + 32 * half);
                        _mm256_storeu_si256(out.cast(), even);
                        _mm256_storeu_si256(out.add(64).cast(), odd);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose_eight(rows: &[*const u8], g: usize, out: *mut f32) {
        // SAFETY: see the trait.
        unsafe {
            let mut all = [_mm_setzero_si128(); 8];
            for o in 0..8 {
                all[o] = _mm_loadu_si128(rows[o].add(2 * g).cast());
            }
            for (i, values) in transpose_eights(all).into_iter().enumerate() {
                // a bf16 is the upper half of an f32
                let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(values));
                _mm256_storeu_si256(out.add(32 * i).cast(), wide);
            }
        }
    }

    /// Of each unit the four parts of its runs apart.
    #[inline(always)]
    unsafe fn spread(_shape: RowShape, row: &Row<'_>, out: *mut i8) {
        for (i, run) in row.values.chunks_exact(RUN_BYTES).enumerate() {
            // SAFETY: a run's parts go to its own places in its unit.
            unsafe { spread_run(run, out.add(4 * UNIT * (i / 8) + 4 * (i % 8)), UNIT) };
        }
    }

    /// Row after row, because memory is fastest from one line to the next: a unit of a row leaves eight sums of eight inputs each,
    /// and only then are those of eight rows added up, so that lanes are outputs.
    #[inline(always)]
    unsafe fn in_place(
        packed: &Packed,
        scales: *mut f32,
        sums: *mut i32,
        x: &Row<'_>,
        spread: *const i8,
    ) -> Self::Floats {
        let bytes = packed.cols / 2;
        let (whole, units) = (bytes / UNIT, bytes.div_ceil(UNIT));
        // SAFETY: weights are read up to the end of their rows, x and its scales within theirs (the caller has checked their
        // lengths), and sums of a unit take 8 i32 of each row, half of the room.
        unsafe {
            for o in 0..OUTPUTS {
                for unit in 0..whole {
                    let row = packed.weights[o].add(UNIT * unit);
                    _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(AHEAD).cast());
                    let products = meet(_mm256_loadu_si256(row.cast()), spread.add(4 * UNIT * unit));
                    _mm256_storeu_si256(sums.add(8 * (OUTPUTS * unit + o)).cast(), products);
                }
                if whole < units {
                    let products = meet(load_unit(packed, o, UNIT * whole), spread.add(4 * UNIT * whole));
                    _mm256_storeu_si256(sums.add(8 * (OUTPUTS * whole + o)).cast(), products);
                }
            }
            Self::transpose_scales(packed, scales);
            let halves = packed.group / 32;
            let mut floats = Self::no_floats();
            let mut group = Self::no_sums();
            for half in 0..packed.cols / 32 {
                let parts = add_up(sums.add(8 * OUTPUTS * (half / 2)), half % 2);
                group = [_mm256_add_epi32(group[0], parts[0]), _mm256_add_epi32(group[1], parts[1])];
                if (half + 1).is_multiple_of(halves) {
                    let g = half / halves;
                    let scales = scales.add(32 * g);
                    let (a, sum) = (*x.scales.get_unchecked(g), *x.sums.get_unchecked(g));
                    floats = Self::scale(group, scales, scales.add(16), a, sum, floats);
                    group = Self::no_sums();
                }
            }
            floats
        }
    }
}

/// Packed bytes that a vector holds: 64 weights of a row.
const UNIT: usize = 32;

/// How far ahead of their use weights are fetched into the second-level cache, in bytes.
const AHEAD: usize = 16 << 10;

/// Bytes `at..at + UNIT` of a row, 0 behind its end.
#[inline(always)]
unsafe fn load_unit(packed: &Packed, row: usize, at: usize) -> __m256i {
    let (row, len) = (packed.weights[row], packed.cols / 2);
    // SAFETY: only bytes before the row's end are read; the caller's processor has AVX2.
    unsafe {
        if at + UNIT <= len {
            return _mm256_loadu_si256(row.add(at).cast());
        }
        let mut bytes = [0u8; UNIT];
        if at < len {
            std::ptr::copy_nonoverlapping(row.add(at), bytes.as_mut_ptr(), len - at);
        }
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }
}

/// The low and the high four bits of each byte: weights with even numbers, and odd ones.
#[inline(always)]
unsafe fn nibbles(bytes: __m256i) -> (__m256i, __m256i) {
    // SAFETY: the caller's processor has AVX2.
    unsafe {
        let low = _mm256_set1_epi8(15);
        (_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low))
    }
}

/// The products of a unit of weights with one of activations: 8 sums of 8 inputs. Four products of weights below 16 with bytes
/// are below 2^13, so they are added up as i16; high halves count 256 times.
#[inline(always)]
unsafe fn meet(bytes: __m256i, x: *const i8) -> __m256i {
    // SAFETY: the caller's unit of activations is spread (see `Dot::spread`), and its processor has AVX2.
    unsafe {
        let x = |part: usize| _mm256_loadu_si256(x.add(UNIT * part).cast());
        let (even, odd) = nibbles(bytes);
        let high = _mm256_add_epi16(_mm256_maddubs_epi16(even, x(0)), _mm256_maddubs_epi16(odd, x(1)));
        let low = _mm256_add_epi16(_mm256_maddubs_epi16(even, x(2)), _mm256_maddubs_epi16(odd, x(3)));
        _mm256_add_epi32(
            _mm256_madd_epi16(high, _mm256_set1_epi16(256)),
            _mm256_madd_epi16(low, _mm256_set1_epi16(1)),
        )
    }
}

/// Of one half of the sums that 16 rows have of a unit, the sum for each row.
#[inline(always)]
unsafe fn add_up(sums: *const i32, half: usize) -> [__m256i; 2] {
    // SAFETY: the caller's sums are 8 of each of 16 rows, and its processor has AVX2.
    unsafe {
        let mut out = [_mm256_setzero_si256(); 2];
        for (block, out) in out.iter_mut().enumerate() {
            let row = |o: usize| _mm_loadu_si128(sums.add(8 * (8 * block + o) + 4 * half).cast());
            let four = |o: usize| {
                let (a, b) = (_mm_hadd_epi32(row(o), row(o + 1)), _mm_hadd_epi32(row(o + 2), row(o + 3)));
                _mm_hadd_epi32(a, b)
            };
            *out = _mm256_set_m128i(four(4), four(0));
        }
        out
    }
}

/// The transpose of 8 rows of 8 values of 32 bits.
#[inline(always)]
unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller's processor has AVX2.
    unsafe {
        // within each half: of four rows, column c
        let mut fours = [[_mm256_setzero_si256(); 4]; 2];
        for i in 0..2 {
            let rows = &rows[4 * i..];
            let (a, b) = (_mm256_unpacklo_epi32(rows[0], rows[1]), _mm256_unpacklo_epi32(rows[2], rows[3]));
            let (c, d) = (_mm256_unpackhi_epi32(rows[0], rows[1]), _mm256_unpackhi_epi32(rows[2], rows[3]));
            fours[i] = [
                _mm256_unpacklo_epi64(a, b),
                _mm256_unpackhi_epi64(a, b),
                _mm256_unpacklo_epi64(c, d),
                _mm256_unpackhi_epi64(c, d),
            ];
        }
        let mut out = [_mm256_setzero_si256(); 8];
        for c in 0..4 {
            out[c] = _mm256_permute2x128_si256::<0x20>(fours[0][c], fours[1][c]);
            out[4 + c] = _mm256_permute2x128_si256::<0x31>(fours[0][c], fours[1][c]);
        }
        out
    }
}

/// The transpose of 8 rows of 8 values of 16 bits.
#[inline(always)]
unsafe fn transpose_eights(rows: [__m128i; 8]) -> [__m128i; 8] {
    // SAFETY: the caller's processor has SSE2.
    unsafe {
        let mut pairs = [_mm_setzero_si128(); 8];
        for i in 0..4 {
            pairs[i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
            pairs[4 + i] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
        }
        // of four rows columns 0 and 1, 2 and 3, ...
        let mut out = [_mm_setzero_si128(); 8];
        for half in 0..2 {
            let p = &pairs[4 * half..];
            let (a, b) = (_mm_unpacklo_epi32(p[0], p[1]), _mm_unpacklo_epi32(p[2], p[3]));
            let (c, d) = (_mm_unpackhi_epi32(p[0], p[1]), _mm_unpackhi_epi32(p[2], p[3]));
            out[4 * half] = _mm_unpacklo_epi64(a, b);
            out[4 * half + 1] = _mm_unpackhi_epi64(a, b);
            out[4 * half + 2] = _mm_unpacklo_epi64(c, d);
            out[4 * half + 3] = _mm_unpackhi_epi64(c, d);
        }
        out
    }
}
