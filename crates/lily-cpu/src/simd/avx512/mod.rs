//! AVX-512: 16 lanes, 4-bit tiles by table lookup, and integer products.

mod chunks;
mod pairs;
mod transpose;

use std::arch::x86_64::*;

use lily_kernels::bf16_to_f32;

use pairs::in_pairs;
pub(super) use transpose::transpose_parts;
use transpose::{store_pair, transpose, transpose_eights};

use super::dot::spread_run;
use super::{Dot, OUTPUTS, Packed, Simd};
use crate::rounded::{CHUNK, RUN_BYTES, Row, RowShape};

/// x86-64 with AVX-512 F, BW, DQ and VL; with `VNNI` also that.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool>;

// SAFETY: the trait's contract restricts calls to processors with AVX-512; loads and stores are unaligned and touch
// exactly 16 values.
unsafe impl<const VNNI: bool> Simd for Avx512<VNNI> {
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
    unsafe fn fetch(line: *const u8) {
        // SAFETY: fetching touches no memory, wherever the address lies; the processor has SSE.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see the trait.
        unsafe { _mm512_reduce_add_ps(v) }
    }

    #[inline(always)]
    unsafe fn widen8(p: *const u8) -> Self::V {
        // SAFETY: see the trait.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    /// Halves of two vectors are added at once, then quarters of four, and so on: the pairs are those of `sum`.
    #[inline(always)]
    unsafe fn sums(all: [Self::V; 16]) -> [f32; 16] {
        // SAFETY: see the trait.
        unsafe {
            let halves = |a: __m512, b: __m512| {
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
            };
            let quarters = |a: __m512, b: __m512| {
                _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
            };
            let mut four = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                // the vectors that end in lane i of each quarter
                let (a, b) = (halves(all[i], all[4 + i]), halves(all[8 + i], all[12 + i]));
                four[i] = quarters(a, b);
            }
            let pairs = |a: __m512, b: __m512| {
                let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
                let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
            };
            let (a, b) = (pairs(four[0], four[1]), pairs(four[2], four[3]));
            let all = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
            let mut out = [0.0; 16];
            _mm512_storeu_ps(out.as_mut_ptr(), all);
            out
        }
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
                let start = g * group / 2;
                if start % 64 < group / 2 {
                    for o in 0..O {
                        // a line of a row further down; fetching touches no memory
                        _mm_prefetch::<_MM_HINT_T1>(weights[o].wrapping_add(start + AHEAD).cast());
                    }
                }
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

// SAFETY: as for `Simd`; each access stays within the values that the trait names.
unsafe impl<const VNNI: bool> Dot for Avx512<VNNI> {
    type Sums = __m512i;
    type Floats = __m512;
    const IN_PLACE: usize = 1;
    /// Ten sums of integers and as many of f32, a run of weights and temporaries: of 32 registers. With twelve, sums went through
    /// memory, and prompts took 2 to 3% longer.
    const TILE: usize = 10;

    #[inline(always)]
    unsafe fn no_sums() -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn no_floats() -> Self::Floats {
        // SAFETY: see the trait.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe {
            let x = _mm512_set1_epi32(x.cast::<i32>().read_unaligned());
            multiply::<VNNI>(sums, _mm512_loadu_si512(weights.cast()), x)
        }
    }

    /// Still packed: half the bytes to write and to read, and splitting them costs the multiplier nothing.
    const PANEL_RUN: usize = 64;

    #[inline(always)]
    unsafe fn dot_run<const R: usize>(sums: &mut [Self::Sums; R], weights: *const u8, x: *const i8) {
        // SAFETY: see the trait.
        unsafe {
            let (even, odd) = nibbles(_mm512_loadu_si512(weights.cast()));
            for r in 0..R {
                let x = _mm512_set1_epi32(x.add(RUN_BYTES * r).cast::<i32>().read_unaligned());
                sums[r] = multiply::<VNNI>(sums[r], even, x);
            }
            for r in 0..R {
                let x = _mm512_set1_epi32(x.add(RUN_BYTES * r + 4).cast::<i32>().read_unaligned());
                sums[r] = multiply::<VNNI>(sums[r], odd, x);
            }
        }
    }

    #[inline(always)]
    unsafe fn shift(sums: Self::Sums) -> Self::Sums {
        // SAFETY: see the trait.
        unsafe { _mm512_slli_epi32(sums, 8) }
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
        unsafe { scale_sums(sums, _mm512_loadu_ps(scales), _mm512_loadu_ps(biases), x, sum, floats) }
    }

    #[inline(always)]
    unsafe fn store_floats(p: *mut f32, floats: Self::Floats) {
        // SAFETY: see the trait.
        unsafe { _mm512_storeu_ps(p, floats) }
    }

    #[inline(always)]
    unsafe fn widen(packed: &Packed, from: usize, panel: *mut u8) {
        // SAFETY: a row's bytes from 4 * from on are loaded up to its end; the panel has room for 16 runs of 128 bytes.
        unsafe {
            let left = packed.cols / 2 - 4 * from;
            if left >= 64 {
                // a quarter of the chunk after the other, gathered from all rows as it is loaded
                for part in 0..4 {
                    for (run, bytes) in transpose_parts(packed, 4 * from + 16 * part).into_iter().enumerate()
                    {
                        _mm512_storeu_si512(panel.add(64 * (4 * part + run)).cast(), bytes);
                    }
                }
                return;
            }
            let mut rows = [_mm512_setzero_si512(); OUTPUTS];
            for o in 0..OUTPUTS {
                rows[o] = _mm512_maskz_loadu_epi8(mask_bytes(left), packed.weights[o].add(4 * from).cast());
            }
            for (run, bytes) in transpose(rows).into_iter().enumerate() {
                _mm512_storeu_si512(panel.add(64 * run).cast(), bytes);
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose_scales(packed: &Packed, out: *mut f32) {
        let groups = packed.cols / packed.group;
        // SAFETY: a row's scales and biases are loaded up to their end, and written for groups below `groups`.
        unsafe {
            let bytes = 2 * OUTPUTS * groups;
            for line in (0..bytes).step_by(64) {
                // of rows behind these; fetching touches no memory
                for rows in [&packed.scales, &packed.biases] {
                    let next = rows[0].wrapping_add(BLOCKS_AHEAD * bytes + line);
                    _mm_prefetch::<_MM_HINT_T1>(next.cast());
                }
            }
            let whole = groups / 32 * 32;
            for from in (0..whole).step_by(32) {
                for (rows, out) in [(&packed.scales, out), (&packed.biases, out.add(16))] {
                    let mut all = [_mm512_setzero_si512(); OUTPUTS];
                    for o in 0..OUTPUTS {
                        all[o] = _mm512_loadu_si512(rows[o].add(2 * from).cast());
                    }
                    let pairs = transpose(all);
                    for pair in 0..16 {
                        store_pair(pairs[pair], 2, out.add(32 * (from + 2 * pair)));
                    }
                }
            }
            for from in (whole..groups).step_by(8) {
                let left = (groups - from).min(8);
                for (rows, out) in [(&packed.scales, out), (&packed.biases, out.add(16))] {
                    for (pair, both) in transpose_eights(rows, 2 * from, left).into_iter().enumerate() {
                        let left = left.saturating_sub(2 * pair);
                        store_pair(both, left, out.wrapping_add(32 * (from + 2 * pair)));
                    }
                }
            }
        }
    }

    /// Of each chunk the four parts of its runs apart; where chunks meet in pairs (`pairs`), first the runs that
    /// come from even quarters of both.
    #[inline(always)]
    unsafe fn spread(shape: RowShape, row: &Row<'_>, out: *mut i8) {
        let pairs = in_pairs(shape);
        for (i, run) in row.values.chunks_exact(RUN_BYTES).enumerate() {
            let (chunk, within) =
                if pairs { (i / 32 * 2 + i / 4 % 2, i / 8 % 4 * 4 + i % 4) } else { (i / 16, i % 16) };
            // SAFETY: a run's parts go to its own places in its chunk, or its pair of chunks.
            unsafe { spread_run(run, out.add(2 * CHUNK * chunk + 4 * within), 64) };
        }
    }

    #[inline(always)]
    unsafe fn in_place(
        packed: &Packed,
        scales: *mut f32,
        sums: *mut i32,
        x: &Row<'_>,
        spread: *const i8,
    ) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe {
            match (in_pairs(packed.shape()), packed.group) {
                (true, 64) => pairs::rows::<VNNI, 1>(packed, x, spread),
                (true, _) => pairs::rows::<VNNI, 2>(packed, x, spread),
                (false, _) => chunks::rows::<VNNI>(packed, (scales, sums), x, spread),
            }
        }
    }
}

/// See [`Dot::scale`].
#[inline(always)]
pub(super) unsafe fn scale_sums(
    sums: __m512i,
    scale: __m512,
    bias: __m512,
    x: f32,
    sum: f32,
    floats: __m512,
) -> __m512 {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x));
        let floats = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, floats);
        _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), floats)
    }
}

/// The low and the high four bits of each byte: weights with even numbers, and odd ones.
#[inline(always)]
pub(super) unsafe fn nibbles(bytes: __m512i) -> (__m512i, __m512i) {
    // SAFETY: the caller's processor has AVX-512.
    unsafe {
        let low = _mm512_set1_epi8(15);
        (_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low))
    }
}

/// How far ahead of their use weights are fetched into the second-level cache, in bytes. On a Zen 4 server, weights from memory
/// through one thread: 27 GB/s at 8, 16 and 32 KiB, 21 at 4, 23 without.
const AHEAD: usize = 16 << 10;

/// How many blocks of [`OUTPUTS`] rows ahead scales are fetched: at one block, products of 2,048 inputs with one row took a seventh
/// longer; at 8 and 16 as long as at 4.
const BLOCKS_AHEAD: usize = 4;

/// Adds to each i32 the products of four unsigned with four signed bytes. Without VNNI, sums of two products must fit i16:
/// they do for weights below 16 (and up to 128).
#[inline(always)]
unsafe fn multiply<const VNNI: bool>(sums: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
    // SAFETY: the caller's processor has the instructions that `VNNI` names.
    unsafe {
        if VNNI {
            _mm512_dpbusd_epi32(sums, unsigned, signed)
        } else {
            let pairs = _mm512_maddubs_epi16(unsigned, signed);
            _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
}

/// The first `left` of 64 bytes.
#[inline(always)]
fn mask_bytes(left: usize) -> __mmask64 {
    if left >= 64 { !0 } else { (1 << left) - 1 }
}
