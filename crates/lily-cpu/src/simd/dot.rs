//! Integer dot products of sixteen outputs at once, each in a lane of its own.

use super::Simd;
use crate::rounded::{RUN_BYTES, Row, RowShape};

/// Outputs of a block of an integer product.
pub(crate) const OUTPUTS: usize = 16;

/// Four-bit matrix rows, in the file's own layout: addresses of the packed values, scales and biases of each output.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    pub(crate) weights: [*const u8; OUTPUTS],
    pub(crate) scales: [*const u8; OUTPUTS],
    pub(crate) biases: [*const u8; OUTPUTS],
    pub(crate) cols: usize,
    pub(crate) group: usize,
}

impl Packed {
    /// The shape of the rows of activations that these meet.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn shape(&self) -> RowShape {
        RowShape { cols: self.cols, group: self.group }
    }
}

/// Sums of integers and of f32 for [`OUTPUTS`] outputs.
///
/// # Safety
/// As for [`Simd`]; pointers must be valid for the values that each function names.
pub(crate) unsafe trait Dot: Simd {
    /// 16 i32.
    type Sums: Copy;
    /// 16 f32.
    type Floats: Copy;
    /// The most rows that [`Dot::in_place`] takes; 0 where it does not exist.
    const IN_PLACE: usize = 0;
    /// The most rows of a register tile.
    const TILE: usize;

    unsafe fn no_sums() -> Self::Sums;
    unsafe fn no_floats() -> Self::Floats;
    /// `sums[o] += weights[4 o..][..4] . x[..4]`: 64 unsigned weights below 16, 4 signed x.
    unsafe fn dot(sums: Self::Sums, weights: *const u8, x: *const i8) -> Self::Sums;
    /// Bytes of a run of 8 inputs of 16 outputs in a panel.
    const PANEL_RUN: usize = 128;

    /// Adds a run of a panel of matrix rows to the sums of R rows of activations, of which one half of their run begins at x and then
    /// every [`RUN_BYTES`] bytes.
    #[inline(always)]
    unsafe fn dot_run<const R: usize>(sums: &mut [Self::Sums; R], weights: *const u8, x: *const i8) {
        for odd in 0..2 {
            for r in 0..R {
                // SAFETY: the caller's promise.
                unsafe {
                    let x = x.add(RUN_BYTES * r + 4 * odd);
                    sums[r] = Self::dot(sums[r], weights.add(64 * odd), x);
                }
            }
        }
    }

    /// `sums[o] * 256`.
    unsafe fn shift(sums: Self::Sums) -> Self::Sums;
    /// `sums[o] * (scales[o] * x) + floats[o]`, and then `biases[o] * sum` on top: the product of scales is rounded, then each
    /// multiply-add as [`Simd::fma`] rounds.
    unsafe fn scale(
        sums: Self::Sums,
        scales: *const f32,
        biases: *const f32,
        x: f32,
        sum: f32,
        floats: Self::Floats,
    ) -> Self::Floats;
    unsafe fn store_floats(p: *mut f32, floats: Self::Floats);

    /// Brings the values of inputs `8 * from..8 * (from + 16)` (those below `cols`; 0 behind them) of 16 rows into a panel, as
    /// [`Dot::dot_run`] wants them. Unless a set says otherwise, they are widened: for each run of 8 inputs the 4 even ones of each
    /// output, then the 4 odd ones: 128 bytes.
    unsafe fn widen(packed: &Packed, from: usize, panel: *mut u8) {
        // SAFETY: rows hold `cols` values, a multiple of 8, and the panel 16 runs.
        unsafe {
            for run in 0..16 {
                for o in 0..OUTPUTS {
                    for i in 0..4 {
                        let inside = 8 * (from + run) < packed.cols;
                        let byte =
                            if inside { packed.weights[o].add(4 * (from + run) + i).read() } else { 0 };
                        panel.add(run * 128 + 4 * o + i).write(byte & 15);
                        panel.add(run * 128 + 64 + 4 * o + i).write(byte >> 4);
                    }
                }
            }
        }
    }

    /// Scales and biases as f32: for each group 16 scales, then 16 biases.
    #[inline(always)]
    unsafe fn transpose_scales(packed: &Packed, out: *mut f32) {
        let groups = packed.cols / packed.group;
        let whole = groups / 8 * 8;
        // SAFETY: rows hold `cols / group` scales and biases in bf16, and `out` 32 f32 a group.
        unsafe {
            for (rows, out) in [(&packed.scales, out), (&packed.biases, out.add(16))] {
                for half in 0..2 {
                    let (rows, out) = (&rows[8 * half..], out.add(8 * half));
                    for g in (0..whole).step_by(8) {
                        Self::transpose_eight(rows, g, out.add(32 * g));
                    }
                    for g in whole..groups {
                        transpose_group(rows, g, out.add(32 * g));
                    }
                }
            }
        }
    }

    /// Groups `g..g + 8` of what [`Dot::transpose_scales`] brings into order, of 8 rows: for each group 8 values, and the next
    /// group's 32 behind.
    #[inline(always)]
    unsafe fn transpose_eight(rows: &[*const u8], g: usize, out: *mut f32) {
        for i in 0..8 {
            // SAFETY: the caller's rows have these groups, and `out` room for them.
            unsafe { transpose_group(rows, g + i, out.add(32 * i)) };
        }
    }

    /// Puts the values of a row of this shape where [`Dot::in_place`] wants them, as many bytes as they are.
    unsafe fn spread(_shape: RowShape, _row: &Row<'_>, _out: *mut i8) {
        unreachable!("IN_PLACE is 0")
    }

    /// The products of 16 matrix rows with one row, whose values are also spread, without a panel of matrix rows: the same
    /// bits. There is room for 16 scales and biases of each group, and for 512 i32 of every chunk, also a begun one.
    unsafe fn in_place(
        _packed: &Packed,
        _scales: *mut f32,
        _sums: *mut i32,
        _x: &Row<'_>,
        _spread: *const i8,
    ) -> Self::Floats {
        unreachable!("IN_PLACE is 0")
    }
}

/// Group `g` of 8 rows of bf16 values, as f32.
#[inline(always)]
unsafe fn transpose_group(rows: &[*const u8], g: usize, out: *mut f32) {
    for o in 0..8 {
        // SAFETY: the caller's rows have this group, and `out` room for 8 values.
        unsafe {
            let bits = rows[o].cast::<u16>().add(g).read_unaligned().to_le();
            out.add(o).write(lily_kernels::bf16_to_f32(bits));
        }
    }
}

/// Puts the four parts of a run of activations, four bytes each, `unit` bytes apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn spread_run(run: &[i8], out: *mut i8, unit: usize) {
    assert!(run.len() == RUN_BYTES);
    for part in 0..4 {
        // SAFETY: the run has four parts (asserted), and the caller's memory room for each.
        unsafe {
            let bytes = run.as_ptr().add(4 * part).cast::<u32>().read_unaligned();
            out.add(unit * part).cast::<u32>().write_unaligned(bytes);
        }
    }
}
