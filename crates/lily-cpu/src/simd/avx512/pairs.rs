//! One row of activations against sixteen matrix rows, two chunks at a time. A pair of chunks meets all rows before the next one does:
//! its activations stay in registers, what four rows leave is added up to lanes that are rows, and nothing goes through memory.
//!
//! Compute bounds it as much as memory does. On a Zen 4 server 2,048 inputs from the second-level cache come at 29 GB/s, 28 where weights
//! straddle lines, and 34 if nothing were scaled; scales that were transposed through memory first, all at once, cost a sixth in cache and
//! a quarter from memory.

use std::arch::x86_64::*;

use super::transpose::{add_runs, of_pair, transpose_eights, transpose_quarters};
use super::{AHEAD, BLOCKS_AHEAD, multiply, nibbles, scale_sums};
use crate::rounded::{CHUNK, Row, RowShape};
use crate::simd::{OUTPUTS, Packed};

/// Whether chunks of a row meet activations in pairs: where groups are at least two quarters of a chunk, and rows whole pairs.
#[inline(always)]
pub(super) fn in_pairs(shape: RowShape) -> bool {
    shape.group >= 64 && shape.cols.is_multiple_of(2 * CHUNK)
}

/// The products of 16 rows with x, where [`in_pairs`] holds and a group is `EACH` times 64 inputs.
///
/// # Safety
/// The rows have `cols` weights and their scales and biases, x as many values, spread (see `Dot::spread`); the processor has the
/// instructions.
#[inline(always)]
pub(super) unsafe fn rows<const VNNI: bool, const EACH: usize>(
    packed: &Packed,
    x: &Row<'_>,
    spread: *const i8,
) -> __m512 {
    // SAFETY: the caller's rows have `cols` weights, whole pairs of chunks, and x as many values, spread; groups have a scale and a bias.
    unsafe {
        let groups = packed.cols / packed.group;
        let mut floats = _mm512_setzero_ps();
        let mut step = EightGroups { packed, x, spread, ahead: Ahead::of(packed), first: 0 };
        while step.first + 8 <= groups {
            step.ahead.scales(packed, step.first);
            floats = step.add::<VNNI, EACH>(8, floats);
            step.first += 8;
        }
        if step.first < groups {
            floats = step.add::<VNNI, EACH>(groups - step.first, floats);
        }
        floats
    }
}

/// What is fetched ahead: one line of memory after the other, whatever the order in which rows are read.
struct Ahead {
    weights: *const u8,
}

impl Ahead {
    fn of(packed: &Packed) -> Self {
        let block = OUTPUTS * packed.cols / 2;
        Ahead { weights: packed.weights[0].wrapping_add(AHEAD.next_multiple_of(block)) }
    }

    /// Two lines of weights.
    #[inline(always)]
    unsafe fn two_lines(&mut self) {
        // SAFETY: fetching touches no memory.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(self.weights.cast());
            _mm_prefetch::<_MM_HINT_T1>(self.weights.wrapping_add(64).cast());
        }
        self.weights = self.weights.wrapping_add(128);
    }

    /// The lines of scales and biases that eight groups of 16 rows take.
    #[inline(always)]
    unsafe fn scales(&self, packed: &Packed, first: usize) {
        let bytes = 2 * OUTPUTS * (packed.cols / packed.group);
        for rows in [&packed.scales, &packed.biases] {
            let next = rows[0].wrapping_add(BLOCKS_AHEAD * bytes + 2 * OUTPUTS * first);
            for line in 0..4 {
                // SAFETY: fetching touches no memory.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(64 * line).cast()) };
            }
        }
    }
}

/// Up to eight groups of 16 rows, and where they are.
struct EightGroups<'a> {
    packed: &'a Packed,
    x: &'a Row<'a>,
    spread: *const i8,
    ahead: Ahead,
    first: usize,
}

impl EightGroups<'_> {
    /// Adds the first `left` of them.
    #[inline(always)]
    unsafe fn add<const VNNI: bool, const EACH: usize>(&mut self, left: usize, floats: __m512) -> __m512 {
        // SAFETY: as for `rows`.
        unsafe {
            let mut floats = floats;
            let scales = transpose_eights(&self.packed.scales, 2 * self.first, left);
            let biases = transpose_eights(&self.packed.biases, 2 * self.first, left);
            let each = 4 / EACH;
            for p in 0..left / each {
                let pair = self.first / each + p;
                let values = load_pair(self.spread.add(4 * CHUNK * pair));
                let mut fours = [_mm512_setzero_si512(); 4];
                for four in 0..4 {
                    let mut rows = [_mm512_setzero_si512(); 4];
                    for i in 0..4 {
                        self.ahead.two_lines();
                        let row = self.packed.weights[4 * four + i].add(128 * pair);
                        let (a, b) = (_mm512_loadu_si512(row.cast()), _mm512_loadu_si512(row.add(64).cast()));
                        rows[i] = meet_pair::<VNNI>(a, b, &values);
                    }
                    fours[four] = add_runs(rows);
                }
                let sums = transpose_quarters(fours);
                for i in 0..each {
                    let mut all = sums[EACH * i];
                    for part in 1..EACH {
                        all = _mm512_add_epi32(all, sums[EACH * i + part]);
                    }
                    let g = each * p + i;
                    let (scale, bias) = (of_pair(scales[g / 2], g % 2), of_pair(biases[g / 2], g % 2));
                    let g = self.first + g;
                    let (a, sum) = (*self.x.scales.get_unchecked(g), *self.x.sums.get_unchecked(g));
                    floats = scale_sums(all, scale, bias, a, sum, floats);
                }
            }
            floats
        }
    }
}

/// The activations of two chunks, spread.
#[inline(always)]
unsafe fn load_pair(x: *const i8) -> [__m512i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut all = [_mm512_setzero_si512(); 8];
        for part in 0..8 {
            all[part] = _mm512_loadu_si512(x.add(64 * part).cast());
        }
        all
    }
}

/// The products of two chunks of weights with two of activations. In each, 64 inputs are two quarters: of both chunks the even
/// quarters are put together, and the odd ones, so that the sums of either can be added: a quarter's four sums, of 16 inputs
/// each, are one of 64 inputs then.
#[inline(always)]
unsafe fn meet_pair<const VNNI: bool>(a: __m512i, b: __m512i, x: &[__m512i; 8]) -> __m512i {
    // SAFETY: the caller's processor has the instructions.
    unsafe {
        let (even, odd) = nibbles(_mm512_shuffle_i32x4::<0x88>(a, b));
        let (even_b, odd_b) = nibbles(_mm512_shuffle_i32x4::<0xdd>(a, b));
        let high = multiply::<VNNI>(_mm512_setzero_si512(), even, x[0]);
        let high = multiply::<VNNI>(multiply::<VNNI>(high, odd, x[1]), even_b, x[4]);
        let high = _mm512_slli_epi32::<8>(multiply::<VNNI>(high, odd_b, x[5]));
        // two short chains instead of a long one: a processor holds the work of a few chunks at once
        let low = multiply::<VNNI>(multiply::<VNNI>(_mm512_setzero_si512(), even, x[2]), odd, x[3]);
        _mm512_add_epi32(high, multiply::<VNNI>(multiply::<VNNI>(low, even_b, x[6]), odd_b, x[7]))
    }
}
