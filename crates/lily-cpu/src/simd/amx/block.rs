//! Products of rounded activations with four-bit matrices in tiles.
//!
//! A group of 64 inputs is one product of tiles: 16 rows of 64 bytes with 64 x 16 weights. High and low halves of activations have sums of
//! their own, which AVX-512 joins and scales while tiles work on the next group. Sums of integers are exact and what follows is
//! the same as without tiles, so results have the same bits.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{SIDE, TILE_BYTES, Tiles, load, multiply, store, zero};
use crate::loops::gemm::Matrix;
use crate::loops::integer::{self, Panel};
use crate::rounded::{RUN, RUN_BYTES, Row};
use crate::simd::avx512::{Avx512, nibbles, scale_sums, transpose_parts};
use crate::simd::{Dot, OUTPUTS, Packed};

/// The fewest rows that tiles multiply. A prompt of 128 tokens, four rows an expert, took as long with 2, 3, 6 and 8, within the noise; one row
/// is read in place without.
const LEAST_ROWS: usize = 4;

/// Inputs of a product of tiles.
const INPUTS: usize = 64;

/// As [`integer::integer_block`].
#[inline(always)]
pub(in crate::simd) fn integer_block(
    matrix: &Matrix<'_>,
    outputs: Range<usize>,
    rows: &[Row<'_>],
    panel: &mut Panel,
    out: &mut [f32],
) {
    if rows.len() < LEAST_ROWS || !matrix.format.group.is_multiple_of(INPUTS) {
        return integer::integer_block::<Avx512<true>>(matrix, outputs, rows, panel, out);
    }
    integer::check(matrix, &outputs, rows, out);
    let shape = Shape { groups: matrix.cols / matrix.format.group, steps: matrix.format.group / INPUTS };
    let places = Places::fit(panel, shape, rows.len());
    let mut r = 0;
    while r < rows.len() {
        let count = tile_rows(rows.len() - r);
        // SAFETY: there is room for all rows (`Places::fit`), each of which has the sizes of the matrix (checked).
        unsafe { gather(&rows[r..r + count], shape, places.rows.add(r * shape.row_bytes())) };
        r += count;
    }
    let width = outputs.len();
    // SAFETY: loops of this set are given out only where tiles are granted.
    let mut tiles = unsafe { Tiles::new(configured_rows(tile_rows(rows.len()))) };
    for first in (0..width).step_by(OUTPUTS) {
        let packed = integer::packed(matrix, outputs.start + first..outputs.end);
        // SAFETY: matrix rows have their weights and scales (checked), the panel room for them; the processor has AVX-512.
        unsafe {
            Avx512::<true>::transpose_scales(&packed, places.scales);
            widen(&packed, places.weights);
        }
        // the first tile fetches the block behind this one
        let mut ahead = Ahead {
            line: packed.weights[0].wrapping_add(OUTPUTS * matrix.format.row_bytes(matrix.cols)),
            lines: matrix.format.group / 2 * OUTPUTS / 64,
        };
        let mut r = 0;
        while r < rows.len() {
            let count = tile_rows(rows.len() - r);
            let mut to = Out {
                values: &mut out[r * width + first..],
                stride: width,
                count: OUTPUTS.min(width - first),
            };
            // SAFETY: tiles have as many rows, which were gathered for this; the panel is there.
            unsafe {
                tiles.resize(configured_rows(count));
                tile(count, shape, &places, places.rows.add(r * shape.row_bytes()), &mut ahead, &mut to);
            }
            ahead.lines = 0;
            r += count;
        }
    }
}

/// Rows of the next tile, given how many are left: as even as can be.
fn tile_rows(left: usize) -> usize {
    left.div_ceil(left.div_ceil(SIDE))
}

/// Both halves of up to eight rows are one tile.
const fn halves_together(rows: usize) -> bool {
    2 * rows <= SIDE
}

/// Rows of tiles that so many rows of activations need.
fn configured_rows(rows: usize) -> usize {
    if halves_together(rows) { 2 * rows } else { rows }
}

/// Groups of a row, and products of tiles in each.
#[derive(Clone, Copy)]
struct Shape {
    groups: usize,
    steps: usize,
}

impl Shape {
    /// Bytes of a row's values.
    fn value_bytes(self) -> usize {
        2 * INPUTS * self.groups * self.steps
    }

    /// Bytes that a row takes beside others, with scales and sums.
    fn row_bytes(self) -> usize {
        self.value_bytes() + 8 * self.groups
    }
}

/// Where a panel is.
struct Places {
    /// See [`widen`].
    weights: *mut u8,
    /// See [`Dot::transpose_scales`].
    scales: *mut f32,
    /// See [`gather`].
    rows: *mut u8,
    /// Of four tiles.
    sums: *mut i32,
}

impl Places {
    fn fit(panel: &mut Panel, shape: Shape, rows: usize) -> Places {
        let weights = TILE_BYTES * shape.steps * shape.groups;
        let bytes = [weights, 128 * shape.groups, rows * shape.row_bytes(), 4 * SIDE * SIDE * 4];
        let [weights, scales, rows, sums] = panel.room(bytes);
        Places { weights, scales: scales.cast(), rows, sums: sums.cast() }
    }
}

/// What is fetched while a tile multiplies: as many lines in each group.
struct Ahead {
    line: *const u8,
    lines: usize,
}

impl Ahead {
    #[inline(always)]
    fn fetch(&mut self) {
        for _ in 0..self.lines {
            // SAFETY: fetching touches no memory, wherever the address lies.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.line.cast()) };
            self.line = self.line.wrapping_add(64);
        }
    }
}

/// Where a tile's results go: `count` of each row.
struct Out<'a> {
    values: &'a mut [f32],
    stride: usize,
    count: usize,
}

/// Rows of a tile put together: for each 64 inputs the high halves of every row, then the low ones; behind all, for each group the
/// scale of every row, and the sum of every row.
///
/// # Safety
/// `out` is aligned to 64 bytes and has room for as many rows of this shape, which the rows have.
#[inline(always)]
unsafe fn gather(rows: &[Row<'_>], shape: Shape, out: *mut u8) {
    let count = rows.len();
    // SAFETY: reads stay within a row's values and groups, writes within its share of `out`; the processor has AVX-512.
    unsafe {
        let high = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
        let low = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
        let scales = out.add(count * shape.value_bytes()).cast::<f32>();
        for (r, row) in rows.iter().enumerate() {
            let mut to = out.add(64 * r);
            for step in 0..shape.groups * shape.steps {
                let from = row.values.as_ptr().add(INPUTS / RUN * RUN_BYTES * step);
                let (a, b) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(64).cast()));
                _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi64(a, high, b));
                _mm512_storeu_si512(to.add(64 * count).cast(), _mm512_permutex2var_epi64(a, low, b));
                to = to.add(128 * count);
            }
            for g in 0..shape.groups {
                let to = scales.add(2 * count * g + r);
                to.write(*row.scales.get_unchecked(g));
                to.add(count).write(*row.sums.get_unchecked(g));
            }
        }
    }
}

/// Brings 16 matrix rows into a panel of tiles: of each run of 8 inputs the four even ones of each output, then the four odd ones.
///
/// # Safety
/// Rows have their weights, a multiple of 64, and the panel room for as many bytes; the processor has AVX-512.
#[inline(always)]
unsafe fn widen(packed: &Packed, panel: *mut u8) {
    // SAFETY: the caller's promise: 16 bytes of a row are 32 weights.
    unsafe {
        let mut to = panel;
        for from in (0..packed.cols / 2).step_by(16) {
            for bytes in transpose_parts(packed, from) {
                let (even, odd) = nibbles(bytes);
                _mm512_storeu_si512(to.cast(), even);
                _mm512_storeu_si512(to.add(64).cast(), odd);
                to = to.add(128);
            }
        }
    }
}

/// Gathered rows against the panel.
///
/// # Safety
/// As [`rows_tile`], of `count` rows.
#[inline(always)]
unsafe fn tile(
    count: usize,
    shape: Shape,
    places: &Places,
    rows: *const u8,
    ahead: &mut Ahead,
    out: &mut Out<'_>,
) {
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match count {
                // SAFETY: the caller's promise.
                $($rows => unsafe { rows_tile::<$rows>(shape, places, rows, ahead, out) },)*
                _ => unreachable!("{count} rows of a tile"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// The body for each row below R, written out: the compiler leaves loops of more than ten as they are, and what they keep in memory.
macro_rules! each_row {
    ($rows:ident, $r:ident, $body:block) => {
        each_row!(@ $rows, $r, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $rows:ident, $r:ident, $body:block, $($row:literal)*) => {
        $(if $row < $rows {
            let $r = $row;
            $body
        })*
    };
}

/// R gathered rows against the panel.
///
/// # Safety
/// Tiles are configured for R rows, which `rows` has as [`gather`] leaves them; there is a panel as [`widen`] leaves it, scales, and room for sums
/// of four tiles; the processor has AVX-512.
#[inline(never)]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn rows_tile<const R: usize>(
    shape: Shape,
    places: &Places,
    rows: *const u8,
    ahead: &mut Ahead,
    out: &mut Out<'_>,
) {
    // SAFETY: the caller's promise. Each group has 128 R bytes of values a step and 1,024 of weights, 2 R f32 of rows
    // and 32 of the panel; groups with even and odd numbers have sums of two tiles each.
    unsafe {
        let of_rows = rows.add(shape.value_bytes() * R).cast::<f32>();
        let (group_bytes, panel_bytes) = (128 * R * shape.steps, TILE_BYTES * shape.steps);
        let mut floats = [_mm512_setzero_ps(); R];
        let sums = [places.sums, places.sums.add(2 * SIDE * SIDE)];
        // A shift to the left by one byte: while tiles are in use, port 5 multiplies and shifts no vectors, but it shuffles. Hidden from the
        // compiler, which would make a shift of it.
        let mut shift = _mm512_set4_epi32(0x0e0d_0c80, 0x0a09_0880, 0x0605_0480, 0x0201_0080);
        asm!("/* {0} */", inout(zmm_reg) shift, options(pure, nomem, nostack, preserves_flags));
        let groups = shape.groups;
        // three stages at a time: one group is multiplied, the sums of the one before are stored, those of the one before that joined
        for g in (0..groups + 2).step_by(2) {
            if g < groups {
                ahead.fetch();
                products::<0, 1, 4, 6, R>(
                    shape.steps,
                    rows.add(group_bytes * g),
                    places.weights.add(panel_bytes * g),
                );
            }
            if g > 0 {
                if g - 1 < groups {
                    store_sums::<2, 3, R>(sums[1]);
                }
                let (scales, of_rows) = (places.scales.add(32 * (g - 2)), of_rows.add(2 * R * (g - 2)));
                join(&mut floats, sums[0], scales, of_rows, shift);
            }
            if g + 1 < groups {
                ahead.fetch();
                products::<2, 3, 5, 7, R>(
                    shape.steps,
                    rows.add(group_bytes * (g + 1)),
                    places.weights.add(panel_bytes * (g + 1)),
                );
            }
            if g < groups {
                store_sums::<0, 1, R>(sums[0]);
            }
            if g > 0 && g - 1 < groups {
                let (scales, of_rows) = (places.scales.add(32 * (g - 1)), of_rows.add(2 * R * (g - 1)));
                join(&mut floats, sums[1], scales, of_rows, shift);
            }
        }
        let which = ((1u32 << out.count) - 1) as __mmask16;
        each_row!(R, r, {
            let to = &mut out.values[r * out.stride..][..out.count];
            _mm512_mask_storeu_ps(to.as_mut_ptr(), which, floats[r]);
        });
    }
}

/// Tiles HIGH and LOW = a group's sums of both halves; of up to eight rows, HIGH has them all, and tile A both halves of rows. Tile B
/// is for weights.
#[inline(always)]
unsafe fn products<const HIGH: usize, const LOW: usize, const A: usize, const B: usize, const R: usize>(
    steps: usize,
    rows: *const u8,
    weights: *const u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        zero::<HIGH>();
        if !halves_together(R) {
            zero::<LOW>();
        }
        for step in 0..steps {
            load::<B>(weights.add(TILE_BYTES * step));
            if halves_together(R) {
                load::<A>(rows.add(128 * R * step));
                multiply::<HIGH, A, B>();
            } else {
                load::<4>(rows.add(128 * R * step));
                load::<5>(rows.add(128 * R * step + 64 * R));
                multiply::<HIGH, 4, B>();
                multiply::<LOW, 5, B>();
            }
        }
    }
}

/// Stores both halves' sums of a group of R rows, one behind the other.
#[inline(always)]
unsafe fn store_sums<const HIGH: usize, const LOW: usize, const R: usize>(sums: *mut i32) {
    // SAFETY: the caller's sums have room for two tiles.
    unsafe {
        store::<HIGH>(sums.cast());
        if !halves_together(R) {
            store::<LOW>(sums.add(SIDE * R).cast());
        }
    }
}

/// Adds a group's sums to those of R rows, scaled.
#[inline(always)]
unsafe fn join<const R: usize>(
    floats: &mut [__m512; R],
    sums: *const i32,
    scales: *const f32,
    of_rows: *const f32,
    shift: __m512i,
) {
    // SAFETY: the caller's sums are 16 for each half of a row, its scales 16 and as many biases, those of rows R and as many sums.
    unsafe {
        let (scale, bias) = (_mm512_loadu_ps(scales), _mm512_loadu_ps(scales.add(SIDE)));
        each_row!(R, r, {
            let high = _mm512_shuffle_epi8(_mm512_loadu_si512(sums.add(SIDE * r).cast()), shift);
            let sums = _mm512_add_epi32(high, _mm512_loadu_si512(sums.add(SIDE * (R + r)).cast()));
            let (a, sum) = (of_rows.add(r).read(), of_rows.add(R + r).read());
            floats[r] = scale_sums(sums, scale, bias, a, sum, floats[r]);
        });
    }
}

#[cfg(test)]
mod tests {
    use lily_kernels::QuantFormat;
    use lily_kernels::random::Random;

    use crate::loops::gemm::Matrix;
    use crate::loops::integer::Panel;
    use crate::memory::Block;
    use crate::rounded::{RowShape, Rows};
    use crate::simd::{Isa, Loops};

    /// Numbers of rows around whole tiles and halves of tiles, groups of one, two and no products, and their odd and even numbers.
    #[test]
    fn tiles_have_the_bits_of_vectors() {
        let (Some(tiles), Some(vectors)) = (Loops::new(Isa::Amx), Loops::new(Isa::Avx512Vnni)) else {
            eprintln!("not run: this processor or system has no tiles");
            return;
        };
        let mut random = Random::new(12);
        let most = 40;
        for (cols, group) in
            [(64, 64), (128, 64), (192, 64), (640, 64), (2048, 64), (128, 128), (640, 128), (256, 32)]
        {
            let format = QuantFormat { bits: 4, group };
            let outputs = 53;
            let q = random.quantized(outputs, cols, format);
            let matrix = Matrix { weight: &q.weight, scales: &q.scales, biases: &q.biases, cols, format };
            let shape = RowShape { cols, group };
            let mut memory = Block::default();
            memory.grow(most * shape.bytes()).unwrap();
            // SAFETY: the block is aligned and long enough, and nobody else knows of it.
            let rows = unsafe { Rows::new(memory.as_mut_ptr(), most, shape) };
            for (r, x) in random.values(most * cols, 1.0).chunks(cols).enumerate() {
                // SAFETY: as above; the loops belong to this processor.
                unsafe { (vectors.round_row)(x, group, &mut rows.write(r)) };
            }
            // one panel for all, so that what one product leaves meets the next
            let mut panel = Panel::default();
            for count in (1..=20).chain([31, 32, 33, 40]) {
                let rows: Vec<_> = (0..count).map(|r| rows.row(r)).collect();
                for part in [0..outputs, 16..48, 5..6] {
                    let mut product = |loops: &Loops| {
                        let mut out = vec![f32::NAN; count * part.len()];
                        // SAFETY: the loops belong to this processor.
                        unsafe { (loops.integer_block)(&matrix, part.clone(), &rows, &mut panel, &mut out) };
                        out.iter().map(|y| y.to_bits()).collect::<Vec<_>>()
                    };
                    assert!(
                        product(&tiles) == product(&vectors),
                        "{count} rows of {cols} inputs in groups of {group}, outputs {part:?}"
                    );
                }
            }
        }
    }
}
