//! Products with quantized matrices: a panel of activation rows meets a block of matrix rows, which are read as packed
//! bytes and dequantized in registers (4 bits, AVX-512) or a group at a time into the first-level cache.

use std::ops::Range;

use lily_kernels::{QuantFormat, bf16_to_f32};

use crate::simd::{PANEL_ORDER, Simd};

/// Activation rows of a register tile. With 4 outputs, 24 sums: as many as 32 vector registers leave room for.
pub(crate) const TILE_ROWS: usize = 6;

/// Matrix rows of a register tile.
const TILE_OUTPUTS: usize = 4;

/// The same where there is one row.
const FEW_ROWS_OUTPUTS: usize = 8;

/// The largest group, and so the size of the dequantized piece of a row.
const MAX_GROUP: usize = 128;

/// A quantized matrix in the file's own layout, at any alignment.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) weight: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) biases: &'a [u8],
    pub(crate) cols: usize,
    pub(crate) format: QuantFormat,
}

/// One row of a matrix.
#[derive(Clone, Copy)]
struct Row<'a> {
    weight: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
}

impl Row<'_> {
    /// Scale and bias of a group.
    #[inline(always)]
    fn scale(&self, g: usize) -> (f32, f32) {
        let at = |b: &[u8]| bf16_to_f32(u16::from_le_bytes([b[2 * g], b[2 * g + 1]]));
        (at(self.scales), at(self.biases))
    }
}

impl<'a> Matrix<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> Row<'a> {
        let (w, s) = (self.format.row_bytes(self.cols), self.format.scale_bytes(self.cols));
        Row {
            weight: &self.weight[i * w..(i + 1) * w],
            scales: &self.scales[i * s..(i + 1) * s],
            biases: &self.biases[i * s..(i + 1) * s],
        }
    }
}

/// Copies rows into a panel [rows, cols], in the order in which tiles of `bits`-bit weights want their inputs.
#[inline(always)]
pub(crate) fn pack_panel<S: Simd>(x: &[&[f32]], bits: usize, panel: &mut [f32]) {
    for (row, out) in x.iter().zip(panel.chunks_exact_mut(x.first().map_or(1, |r| r.len()))) {
        if S::TILE4 && bits == 4 {
            for (from, to) in row.chunks_exact(16).zip(out.chunks_exact_mut(16)) {
                for i in 0..16 {
                    to[i] = from[PANEL_ORDER[i]];
                }
            }
        } else {
            out.copy_from_slice(row);
        }
    }
}

/// out[r, o] = panel row r . matrix row `outputs.start + o`; out is [rows, outputs.len()].
#[inline(always)]
pub(crate) fn gemm_block<S: Simd>(
    matrix: &Matrix<'_>,
    outputs: Range<usize>,
    panel: &[f32],
    out: &mut [f32],
) {
    let (rows, width) = (panel.len() / matrix.cols, outputs.len());
    if rows > TILE_ROWS && !(S::TILE4 && matrix.format.bits == 4) {
        return unpacked_block::<S>(matrix, outputs, panel, out);
    }
    let mut r = 0;
    while r < rows {
        let n = (rows - r).min(TILE_ROWS);
        let panel = &panel[r * matrix.cols..(r + n) * matrix.cols];
        let out = &mut out[r * width..(r + n) * width];
        match n {
            1 => strip::<S, 1>(matrix, outputs.clone(), panel, out),
            2 => strip::<S, 2>(matrix, outputs.clone(), panel, out),
            3 => strip::<S, 3>(matrix, outputs.clone(), panel, out),
            4 => strip::<S, 4>(matrix, outputs.clone(), panel, out),
            5 => strip::<S, 5>(matrix, outputs.clone(), panel, out),
            _ => strip::<S, TILE_ROWS>(matrix, outputs.clone(), panel, out),
        }
        r += n;
    }
}

/// R panel rows against all outputs of the block.
#[inline(always)]
fn strip<S: Simd, const R: usize>(
    matrix: &Matrix<'_>,
    outputs: Range<usize>,
    panel: &[f32],
    out: &mut [f32],
) {
    let width = outputs.len();
    let mut o = 0;
    while o < width {
        if R == 1 && width - o >= FEW_ROWS_OUTPUTS {
            tile::<S, FEW_ROWS_OUTPUTS, R>(matrix, outputs.start + o, panel, &mut out[o..], width);
            o += FEW_ROWS_OUTPUTS;
        } else if width - o >= TILE_OUTPUTS {
            tile::<S, TILE_OUTPUTS, R>(matrix, outputs.start + o, panel, &mut out[o..], width);
            o += TILE_OUTPUTS;
        } else {
            tile::<S, 1, R>(matrix, outputs.start + o, panel, &mut out[o..], width);
            o += 1;
        }
    }
}

/// The same for more rows than a tile has: a few matrix rows are dequantized once for all of them. Sums have the same order as
/// those of [`by_group`], and so the same bits.
#[inline(always)]
fn unpacked_block<S: Simd>(matrix: &Matrix<'_>, outputs: Range<usize>, panel: &[f32], out: &mut [f32]) {
    let (cols, width) = (matrix.cols, outputs.len());
    let mut wide = vec![0.0f32; TILE_OUTPUTS * cols];
    for o in (0..width).step_by(TILE_OUTPUTS) {
        let count = TILE_OUTPUTS.min(width - o);
        for (i, wide) in wide.chunks_exact_mut(cols).enumerate().take(count) {
            unpack_row::<S>(matrix, outputs.start + o + i, wide);
        }
        for (i, rows) in panel.chunks(TILE_ROWS * cols).enumerate() {
            let out = &mut out[i * TILE_ROWS * width + o..];
            if count == TILE_OUTPUTS && rows.len() == TILE_ROWS * cols {
                plain_tile::<S, TILE_OUTPUTS, TILE_ROWS>(&wide, rows, cols, out, width);
                continue;
            }
            for (r, row) in rows.chunks_exact(cols).enumerate() {
                let out = &mut out[r * width..];
                for (i, wide) in wide.chunks_exact(cols).enumerate().take(count) {
                    plain_tile::<S, 1, 1>(wide, row, cols, &mut out[i..], width);
                }
            }
        }
    }
}

/// O dequantized rows against R panel rows; `out[r * stride + o]`.
#[inline(always)]
fn plain_tile<S: Simd, const O: usize, const R: usize>(
    wide: &[f32],
    panel: &[f32],
    cols: usize,
    out: &mut [f32],
    stride: usize,
) {
    assert!(wide.len() >= O * cols && panel.len() >= R * cols && cols.is_multiple_of(S::LANES));
    // SAFETY: loads end at `cols`, a whole number of vectors, in rows that are there (asserted); the processor has `S`.
    unsafe {
        let mut acc = [[S::splat(0.0); R]; O];
        for i in (0..cols).step_by(S::LANES) {
            let mut x = [S::splat(0.0); R];
            for r in 0..R {
                x[r] = S::load(panel.as_ptr().add(r * cols + i));
            }
            for o in 0..O {
                let w = S::load(wide.as_ptr().add(o * cols + i));
                for r in 0..R {
                    acc[o][r] = S::fma(w, x[r], acc[o][r]);
                }
            }
        }
        for o in 0..O {
            for r in 0..R {
                out[r * stride + o] = S::sum(acc[o][r]);
            }
        }
    }
}

/// O outputs from `first` on, R rows; `out[r * stride + o]`.
#[inline(always)]
fn tile<S: Simd, const O: usize, const R: usize>(
    matrix: &Matrix<'_>,
    first: usize,
    panel: &[f32],
    out: &mut [f32],
    stride: usize,
) {
    let rows: [Row<'_>; O] = std::array::from_fn(|o| matrix.row(first + o));
    assert!(panel.len() == R * matrix.cols);
    let sums: [[f32; R]; O] = if S::TILE4 && matrix.format.bits == 4 {
        // SAFETY: rows are slices of exactly `cols` packed values with their scales and biases, the panel has R rows
        // (asserted), groups are multiples of 32 that divide `cols`.
        unsafe {
            S::tile4(
                std::array::from_fn(|o| rows[o].weight.as_ptr()),
                std::array::from_fn(|o| rows[o].scales.as_ptr()),
                std::array::from_fn(|o| rows[o].biases.as_ptr()),
                matrix.format.group,
                matrix.cols,
                panel.as_ptr(),
            )
        }
    } else if matrix.format.bits == 8 {
        bytes::<S, O, R>(matrix, &rows, panel)
    } else {
        by_group::<S, O, R>(matrix, &rows, panel)
    };
    for r in 0..R {
        for o in 0..O {
            out[r * stride + o] = sums[o][r];
        }
    }
}

/// Eight bits: a vector of each row is dequantized in registers, then multiplied. The bits are those of [`by_group`].
#[inline(always)]
fn bytes<S: Simd, const O: usize, const R: usize>(
    matrix: &Matrix<'_>,
    rows: &[Row<'_>; O],
    panel: &[f32],
) -> [[f32; R]; O] {
    let (group, cols) = (matrix.format.group, matrix.cols);
    assert!(panel.len() == R * cols && cols.is_multiple_of(group) && group.is_multiple_of(S::LANES));
    assert!(rows.iter().all(|row| row.weight.len() == cols));
    // SAFETY: vectors end at `cols`, which is a whole number of groups, and those of vectors, in matrix rows of `cols` bytes and panel
    // rows of `cols` values (asserted); the processor has `S` (the contract of the loops).
    unsafe {
        let mut acc = [[S::splat(0.0); R]; O];
        for g in 0..cols / group {
            let mut scales = [S::splat(0.0); O];
            let mut biases = [S::splat(0.0); O];
            for o in 0..O {
                // rows behind these: weights that are read once come from memory at a third of the speed without it
                S::fetch(rows[o].weight.as_ptr().wrapping_add(O * cols + g * group));
                let (scale, bias) = rows[o].scale(g);
                (scales[o], biases[o]) = (S::splat(scale), S::splat(bias));
            }
            for i in (g * group..(g + 1) * group).step_by(S::LANES) {
                let mut x = [S::splat(0.0); R];
                for r in 0..R {
                    x[r] = S::load(panel.as_ptr().add(r * cols + i));
                }
                for o in 0..O {
                    let q = S::widen8(rows[o].weight.as_ptr().add(i));
                    let w = S::add(S::mul(scales[o], q), biases[o]);
                    for r in 0..R {
                        acc[o][r] = S::fma(w, x[r], acc[o][r]);
                    }
                }
            }
        }
        let mut sums = [[0.0; R]; O];
        for o in 0..O {
            for r in 0..R {
                sums[o][r] = S::sum(acc[o][r]);
            }
        }
        sums
    }
}

/// Any format: a group of each row is dequantized to the stack, then multiplied.
#[inline(always)]
fn by_group<S: Simd, const O: usize, const R: usize>(
    matrix: &Matrix<'_>,
    rows: &[Row<'_>; O],
    panel: &[f32],
) -> [[f32; R]; O] {
    let (group, cols) = (matrix.format.group, matrix.cols);
    let mut w = [[0.0f32; MAX_GROUP]; O];
    // SAFETY: lanes are read from `w` (group <= MAX_GROUP, a multiple of 16) and from panel rows of `cols` values, of
    // which g * group + i + LANES <= cols; the processor has `S` (the contract of the loops).
    unsafe {
        let mut acc = [[S::splat(0.0); R]; O];
        for g in 0..cols / group {
            for o in 0..O {
                unpack_group::<S>(matrix.format, &rows[o], g, &mut w[o][..group]);
            }
            let mut i = 0;
            while i < group {
                let mut x = [S::splat(0.0); R];
                for r in 0..R {
                    x[r] = S::load(panel.as_ptr().add(r * cols + g * group + i));
                }
                for o in 0..O {
                    let w = S::load(w[o].as_ptr().add(i));
                    for r in 0..R {
                        acc[o][r] = S::fma(w, x[r], acc[o][r]);
                    }
                }
                i += S::LANES;
            }
        }
        let mut sums = [[0.0; R]; O];
        for o in 0..O {
            for r in 0..R {
                sums[o][r] = S::sum(acc[o][r]);
            }
        }
        sums
    }
}

/// Row `row`, dequantized, in natural order.
#[inline(always)]
pub(crate) fn unpack_row<S: Simd>(matrix: &Matrix<'_>, row: usize, out: &mut [f32]) {
    let row = matrix.row(row);
    for (g, out) in out.chunks_exact_mut(matrix.format.group).enumerate() {
        unpack_group::<S>(matrix.format, &row, g, out);
    }
}

/// Group `g` of a row: scale * q + bias. The product is exact (8 bits of q, 8 of scale), so this rounds once.
#[inline(always)]
fn unpack_group<S: Simd>(format: QuantFormat, row: &Row<'_>, g: usize, out: &mut [f32]) {
    let (scale, bias) = row.scale(g);
    let bytes = format.group * format.bits / 8;
    let packed = &row.weight[g * bytes..(g + 1) * bytes];
    let w = |q: u32| scale * q as f32 + bias;
    match format.bits {
        8 => packed.iter().zip(out).for_each(|(b, out)| *out = w(u32::from(*b))),
        4 => packed.iter().zip(out.chunks_exact_mut(2)).for_each(|(b, out)| {
            out[0] = w(u32::from(b & 15));
            out[1] = w(u32::from(b >> 4));
        }),
        2 => packed.iter().zip(out.chunks_exact_mut(4)).for_each(|(b, out)| {
            (0..4).for_each(|i| out[i] = w(u32::from((b >> (2 * i)) & 3)));
        }),
        // 8 values in `bits` bytes: 3, 5 and 6 bits
        bits => packed.chunks_exact(bits).zip(out.chunks_exact_mut(8)).for_each(|(p, out)| {
            let mut word = [0; 8];
            word[..bits].copy_from_slice(p);
            let word = u64::from_le_bytes(word);
            (0..8).for_each(|i| out[i] = w((word >> (bits * i)) as u32 & ((1 << bits) - 1)));
        }),
    }
}
