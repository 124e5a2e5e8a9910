//! Products of rounded activations with four-bit matrices.
//!
//! With x = a q_x and w = s q_w + b in each group, w . x = sum over groups of (s a) (q_w . q_x) + b (a sum q_x). The dot
//! product of integers is exact in any order. The rest is f32, and the same everywhere: group after group, for each first the
//! multiply-add with s a, then the one with b.

use std::ops::Range;

use super::gemm::Matrix;
use crate::rounded::{CHUNK, RUN, RUN_BYTES, Row, RowShape};
use crate::simd::{Dot, OUTPUTS, Packed};

/// Sixteen matrix rows made ready for several activation rows.
#[derive(Debug, Default)]
pub(crate) struct Panel {
    /// See [`Dot::widen`].
    weights: Vec<Line>,
    /// See [`Dot::transpose_scales`].
    scales: Vec<Line>,
    /// The activation rows of each tile, interleaved: see [`interleave`].
    rows: Vec<Line>,
    /// Sums of four tiles of 16 x 16 integers, where a processor has tiles.
    #[cfg(target_arch = "x86_64")]
    sums: Vec<Line>,
}

/// A cache line, so that vectors do not straddle two.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Line(#[allow(dead_code)] [u8; 64]); // read and written through pointers only

impl Panel {
    /// Room for 16 rows of a matrix and for `rows` rows of activations.
    fn fit(&mut self, matrix: &Matrix<'_>, rows: usize) -> Places {
        let groups = matrix.cols / matrix.format.group;
        let weights = matrix.cols.next_multiple_of(CHUNK) * OUTPUTS / 64;
        let activations = (rows * (2 * matrix.cols.next_multiple_of(CHUNK) + 8 * groups)).div_ceil(64);
        let lens = [weights, 2 * groups, activations];
        for (lines, len) in [&mut self.weights, &mut self.scales, &mut self.rows].into_iter().zip(lens) {
            if lines.len() < len {
                lines.resize(len, Line([0; 64]));
            }
        }
        Places {
            weights: self.weights.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr().cast(),
            rows: self.rows.as_mut_ptr().cast(),
            groups,
            runs: matrix.format.group / 8,
        }
    }

    /// Memory of as many bytes, aligned to cache lines: for weights, scales, rows and sums.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn room(&mut self, bytes: [usize; 4]) -> [*mut u8; 4] {
        let parts = [&mut self.weights, &mut self.scales, &mut self.rows, &mut self.sums];
        let mut places = [std::ptr::null_mut(); 4];
        for ((lines, bytes), place) in parts.into_iter().zip(bytes).zip(&mut places) {
            if lines.len() < bytes.div_ceil(64) {
                lines.resize(bytes.div_ceil(64), Line([0; 64]));
            }
            *place = lines.as_mut_ptr().cast();
        }
        places
    }
}

/// Where a panel is, and its sizes.
#[derive(Clone, Copy)]
struct Places {
    weights: *mut u8,
    scales: *mut f32,
    rows: *mut u8,
    groups: usize,
    /// Of 8 inputs, in a group.
    runs: usize,
}

impl Places {
    /// Bytes that a row takes when it is interleaved with others.
    fn row_bytes(&self) -> usize {
        self.groups * (16 * self.runs + 8)
    }
}

/// Rows of the next register tile, given how many are left: tiles are as even as they can be, because small ones leave the
/// processor waiting for its own sums.
fn tile_rows<S: Dot>(left: usize) -> usize {
    left.div_ceil(left.div_ceil(S::TILE))
}

/// Rows of a tile put together so that a tile reads them from one place to the next: for each group the runs of every row, run
/// after run, then the scale of every row, and the sum of every row.
///
/// # Safety
/// `out` has room for as many rows, whose sizes are those of `places`.
#[inline(always)]
unsafe fn interleave(rows: &[Row<'_>], places: &Places, out: *mut u8) {
    /// A run of activations, moved at once.
    type Run = [u64; RUN_BYTES / 8];
    let count = rows.len();
    let group_bytes = count * places.row_bytes() / places.groups;
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: reads stay within the row's chunks and groups, writes within the row's share of `out`.
        unsafe {
            let mut from = row.values.as_ptr().cast::<Run>();
            for g in 0..places.groups {
                let mut to = out.add(g * group_bytes).cast::<Run>().add(r);
                for _ in 0..places.runs {
                    to.write_unaligned(from.read_unaligned());
                    (from, to) = (from.add(1), to.add(count));
                }
                let to = out.add(g * group_bytes + count * places.runs * RUN_BYTES).cast::<f32>().add(r);
                to.write(*row.scales.get_unchecked(g));
                to.add(count).write(*row.sums.get_unchecked(g));
            }
        }
    }
}

/// Panics unless a product of these is within their memory.
pub(crate) fn check(matrix: &Matrix<'_>, outputs: &Range<usize>, rows: &[Row<'_>], out: &[f32]) {
    let groups = matrix.cols / matrix.format.group;
    assert!(
        matrix.format.bits == 4 && outputs.end * matrix.format.row_bytes(matrix.cols) <= matrix.weight.len()
    );
    let scale_bytes = outputs.end * matrix.format.scale_bytes(matrix.cols);
    assert!(scale_bytes <= matrix.scales.len() && scale_bytes <= matrix.biases.len());
    for row in rows {
        assert!(row.values.len() == matrix.cols.next_multiple_of(CHUNK) / RUN * RUN_BYTES);
        assert!(row.scales.len() == groups && row.sums.len() == groups);
    }
    assert!(out.len() == rows.len() * outputs.len());
}

/// out[r, o] = row r . matrix row `outputs.start + o`; out is [rows, outputs.len()].
#[inline(always)]
pub(crate) fn integer_block<S: Dot>(
    matrix: &Matrix<'_>,
    outputs: Range<usize>,
    rows: &[Row<'_>],
    panel: &mut Panel,
    out: &mut [f32],
) {
    check(matrix, &outputs, rows, out);
    let width = outputs.len();
    let in_place = rows.len() <= S::IN_PLACE;
    let places = panel.fit(matrix, rows.len());
    if in_place {
        let shape = RowShape { cols: matrix.cols, group: matrix.format.group };
        for (r, row) in rows.iter().enumerate() {
            // SAFETY: as below: what a row takes when it is interleaved is enough for its values.
            unsafe { S::spread(shape, row, places.rows.add(r * places.row_bytes()).cast()) };
        }
    }
    let rows_left = |r: usize| rows.len() - r;
    let mut r = 0;
    while r < rows.len() && !in_place {
        let count = tile_rows::<S>(rows.len() - r);
        // SAFETY: there is room for all rows (`Panel::fit`), each of which has the sizes of the matrix (asserted).
        unsafe { interleave(&rows[r..r + count], &places, places.rows.add(r * places.row_bytes())) };
        r += count;
    }
    for first in (0..width).step_by(OUTPUTS) {
        let packed = packed(matrix, outputs.start + first..outputs.end);
        let count = OUTPUTS.min(width - first);
        let mut block = [0.0f32; OUTPUTS];
        if in_place {
            for (r, row) in rows.iter().enumerate() {
                // SAFETY: matrix rows and the row have `cols` values and their scales (asserted), the panel has room for
                // the scales; the processor has `S` (the contract of the loops).
                unsafe {
                    let x = places.rows.add(r * places.row_bytes());
                    let sums = places.weights.cast();
                    let floats = S::in_place(&packed, places.scales, sums, row, x.cast());
                    S::store_floats(block.as_mut_ptr(), floats);
                }
                out[r * width + first..][..count].copy_from_slice(&block[..count]);
            }
            continue;
        }
        // SAFETY: as above, and the panel has room for whole chunks.
        unsafe {
            S::transpose_scales(&packed, places.scales);
            for chunk in 0..matrix.cols.div_ceil(CHUNK) {
                S::widen(&packed, chunk * 16, places.weights.add(chunk * 16 * S::PANEL_RUN));
            }
        }
        // the first tile fetches the block behind this one
        let ahead = packed.weights[0].wrapping_add(OUTPUTS * matrix.format.row_bytes(matrix.cols));
        let mut lines = places.runs * OUTPUTS * 4 / 64;
        let mut r = 0;
        while r < rows.len() {
            let out = &mut out[r * width + first..];
            // SAFETY: the rows from r on were interleaved for this tile; the processor has `S`.
            unsafe {
                let rows = places.rows.add(r * places.row_bytes());
                match tile_rows::<S>(rows_left(r)) {
                    10 => tile::<S, 10>(&places, rows, (ahead, lines), out, width, count),
                    9 => tile::<S, 9>(&places, rows, (ahead, lines), out, width, count),
                    8 => tile::<S, 8>(&places, rows, (ahead, lines), out, width, count),
                    7 => tile::<S, 7>(&places, rows, (ahead, lines), out, width, count),
                    6 => tile::<S, 6>(&places, rows, (ahead, lines), out, width, count),
                    5 => tile::<S, 5>(&places, rows, (ahead, lines), out, width, count),
                    4 => tile::<S, 4>(&places, rows, (ahead, lines), out, width, count),
                    3 => tile::<S, 3>(&places, rows, (ahead, lines), out, width, count),
                    2 => tile::<S, 2>(&places, rows, (ahead, lines), out, width, count),
                    _ => tile::<S, 1>(&places, rows, (ahead, lines), out, width, count),
                }
            }
            lines = 0;
            r += tile_rows::<S>(rows_left(r));
        }
    }
}

/// The first 16 of some matrix rows; the last again where there are fewer.
#[inline(always)]
pub(crate) fn packed(matrix: &Matrix<'_>, rows: Range<usize>) -> Packed {
    let (w, s) = (matrix.format.row_bytes(matrix.cols), matrix.format.scale_bytes(matrix.cols));
    let at = |bytes: &[u8], size: usize| {
        let mut all = [bytes.as_ptr(); OUTPUTS];
        for (o, at) in all.iter_mut().enumerate() {
            // at or before the last row, whose bytes the caller has checked
            *at = at.wrapping_add((rows.start + o).min(rows.end - 1) * size);
        }
        all
    };
    Packed {
        weights: at(matrix.weight, w),
        scales: at(matrix.scales, s),
        biases: at(matrix.biases, s),
        cols: matrix.cols,
        group: matrix.format.group,
    }
}

/// R interleaved rows against the panel: `out[r * stride..][..count]`.
///
/// # Safety
/// The panel and the rows are as `places` says; the processor has `S`.
#[inline(always)]
unsafe fn tile<S: Dot, const R: usize>(
    places: &Places,
    rows: *const u8,
    (mut ahead, lines): (*const u8, usize),
    out: &mut [f32],
    stride: usize,
    count: usize,
) {
    // SAFETY: the caller's promise: for each group R times 16 bytes a run and 2 R f32, and `PANEL_RUN` bytes of weights for each run and
    // 32 f32 of scales and biases for each group.
    unsafe {
        let (mut x, mut weights, mut scales) =
            (rows, places.weights.cast_const(), places.scales.cast_const());
        let mut floats = [S::no_floats(); R];
        for _ in 0..places.groups {
            for _ in 0..lines {
                S::fetch(ahead);
                ahead = ahead.wrapping_add(64);
            }
            let mut sums = [S::no_sums(); R];
            for half in [0, RUN] {
                for run in 0..places.runs {
                    let x = x.add(RUN_BYTES * R * run + half);
                    S::dot_run(&mut sums, weights.add(S::PANEL_RUN * run), x.cast());
                }
                if half == 0 {
                    for r in 0..R {
                        sums[r] = S::shift(sums[r]);
                    }
                }
            }
            x = x.add(RUN_BYTES * R * places.runs);
            let of_rows = x.cast::<f32>();
            for r in 0..R {
                let (a, sum) = (of_rows.add(r).read(), of_rows.add(R + r).read());
                floats[r] = S::scale(sums[r], scales, scales.add(16), a, sum, floats[r]);
            }
            x = x.add(8 * R);
            weights = weights.add(S::PANEL_RUN * places.runs);
            scales = scales.add(32);
        }
        for r in 0..R {
            if count == OUTPUTS {
                S::store_floats(out[r * stride..][..OUTPUTS].as_mut_ptr(), floats[r]);
            } else {
                let mut block = [0.0f32; OUTPUTS];
                S::store_floats(block.as_mut_ptr(), floats[r]);
                out[r * stride..][..count].copy_from_slice(&block[..count]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_kernels::QuantFormat;
    use lily_kernels::random::Random;

    use super::{Matrix, Panel};
    use crate::memory::Block;
    use crate::rounded::{RowShape, Rows};
    use crate::simd::{Isa, Loops};

    /// Widths around a chunk, four, eight of them; what a panel gives is held against f64 by the tests of kernels.
    #[test]
    fn a_row_alone_has_the_bits_that_it_has_beside_others() {
        let mut random = Random::new(11);
        for cols in [128, 256, 512, 640, 896, 1024, 1152, 2048, 3072] {
            for group in [32, 64, 128] {
                let format = QuantFormat { bits: 4, group };
                let outputs = 37;
                let q = random.quantized(outputs, cols, format);
                let x = random.values(3 * cols, 1.0);
                let shape = RowShape { cols, group };
                for isa in Isa::available() {
                    let loops = Loops::new(isa).unwrap();
                    let mut memory = Block::default();
                    memory.grow(3 * shape.bytes()).unwrap();
                    // SAFETY: the block is aligned and long enough, and nobody else knows of it.
                    let rows = unsafe { Rows::new(memory.as_mut_ptr(), 3, shape) };
                    for (r, x) in x.chunks(cols).enumerate() {
                        // SAFETY: as above; the loops belong to this processor.
                        unsafe { (loops.round_row)(x, group, &mut rows.write(r)) };
                    }
                    let matrix =
                        Matrix { weight: &q.weight, scales: &q.scales, biases: &q.biases, cols, format };
                    let mut panel = Panel::default();
                    let mut product = |rows: &[_], part: std::ops::Range<usize>| {
                        let mut out = vec![0.0; rows.len() * part.len()];
                        // SAFETY: the loops belong to this processor.
                        unsafe { (loops.integer_block)(&matrix, part, rows, &mut panel, &mut out) };
                        out.iter().map(|y| y.to_bits()).collect::<Vec<_>>()
                    };
                    let together = product(&[rows.row(0), rows.row(1), rows.row(2)], 0..outputs);
                    for r in 0..3 {
                        let mut alone = product(&[rows.row(r)], 0..21);
                        alone.extend(product(&[rows.row(r)], 21..outputs));
                        let name = isa.name();
                        assert!(
                            alone == together[r * outputs..][..outputs],
                            "{name}, {cols} inputs in groups of {group}"
                        );
                    }
                }
            }
        }
    }

    /// Every weight and half of a value as large as it can be, so that sums in 16 bits are.
    #[test]
    fn the_largest_values_fit() {
        let cols = 640;
        for group in [32, 64, 128] {
            let format = QuantFormat { bits: 4, group };
            let outputs = 16;
            let groups = outputs * cols / group;
            let (weight, scales) = (vec![0xff; outputs * cols / 2], 0x3f80u16.to_le_bytes().repeat(groups));
            let biases = vec![0; 2 * groups];
            let matrix = Matrix { weight: &weight, scales: &scales, biases: &biases, cols, format };
            for half in [127i8, -128] {
                let mut memory = Block::default();
                let shape = RowShape { cols, group };
                memory.grow(9 * shape.bytes()).unwrap();
                // SAFETY: the block is aligned and long enough, and nobody else knows of it.
                let rows = unsafe { Rows::new(memory.as_mut_ptr(), 9, shape) };
                for r in 0..9 {
                    // SAFETY: nobody else touches the row.
                    let row = unsafe { rows.write(r) };
                    row.values.fill(half);
                    row.scales.fill(1.0);
                    row.sums.fill(0.0);
                }
                let of_group = (15 * 257 * group as i32 * i32::from(half)) as f32;
                let want = (0..cols / group).fold(0.0f32, |sum, _| sum + of_group);
                for isa in Isa::available() {
                    let loops = Loops::new(isa).unwrap();
                    for count in [1, 2, 8, 9] {
                        let mut out = vec![0.0; count * outputs];
                        let rows: Vec<_> = (0..count).map(|r| rows.row(r)).collect();
                        // SAFETY: the loops belong to this processor.
                        unsafe {
                            (loops.integer_block)(&matrix, 0..outputs, &rows, &mut Panel::default(), &mut out)
                        };
                        let name = isa.name();
                        assert!(
                            out.iter().all(|y| *y == want),
                            "{name}, groups of {group}: {} for {want}",
                            out[0]
                        );
                    }
                }
            }
        }
    }
}
