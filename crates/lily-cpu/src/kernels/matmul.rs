//! Embedding rows, and products with quantized matrices.

use std::ops::Range;

use lily_kernels::QuantFormat;
use lily_kernels::quant::{Embed, Matmul, Output, Swiglu};

use super::{TASKS_PER_THREAD, Task};
use crate::loops::gemm::Matrix;
use crate::memory::Args;
use crate::pool::sized;
use crate::simd::Loops;

/// Activation rows of a panel: 48 rows of 2,048 f32 are 384 KiB, which leaves room in a second-level cache of 1 MiB.
const PANEL_ROWS: usize = 48;

/// The fewest outputs of a task, so that packing its panel stays a small part of it.
const LEAST_OUTPUTS: usize = 16;

/// A grid of tasks over rows and outputs.
pub(crate) struct Split {
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    row_blocks: usize,
    output_blocks: usize,
}

impl Split {
    pub(crate) fn new(rows: usize, outputs: usize, threads: usize) -> Self {
        let row_blocks = rows.div_ceil(PANEL_ROWS).max(1);
        let wanted = (threads * TASKS_PER_THREAD).div_ceil(row_blocks);
        let output_blocks = wanted.clamp(1, outputs.div_ceil(LEAST_OUTPUTS).max(1));
        Split { rows, outputs, row_blocks, output_blocks }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.row_blocks * self.output_blocks
    }

    /// Rows and outputs of a task.
    pub(crate) fn part(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let rows = index / self.output_blocks * PANEL_ROWS;
        // multiples of 8 outputs: whole register tiles
        let block = self.outputs.div_ceil(self.output_blocks).next_multiple_of(8);
        let outputs = (index % self.output_blocks * block).min(self.outputs);
        (rows..(rows + PANEL_ROWS).min(self.rows), outputs..(outputs + block).min(self.outputs))
    }
}

/// The matrix bound from operand `first` on: weight, scales, biases.
pub(crate) fn matrix<'a>(args: &'a Args<'_>, first: usize, cols: usize, format: QuantFormat) -> Matrix<'a> {
    Matrix {
        weight: args.bytes(first),
        scales: args.bytes(first + 1),
        biases: args.bytes(first + 2),
        cols,
        format,
    }
}

/// Packs `rows` for `format` and multiplies: out [rows, outputs.len()].
pub(crate) fn product<'s>(
    loops: &Loops,
    matrix: &Matrix<'_>,
    outputs: Range<usize>,
    rows: &[&[f32]],
    panel: &mut Vec<f32>,
    out: &'s mut Vec<f32>,
) -> &'s mut [f32] {
    let panel = sized(panel, rows.len() * matrix.cols);
    let out = sized(out, rows.len() * outputs.len());
    // SAFETY: `loops` belongs to this processor (`Loops::new`).
    unsafe {
        (loops.pack_panel)(rows, matrix.format.bits, panel);
        (loops.gemm_block)(matrix, outputs, panel, out);
    }
    out
}

pub(crate) fn embed_tasks(k: &Embed) -> usize {
    k.rows
}

pub(crate) fn embed(k: &Embed, t: Task<'_>) {
    let token = t.args.u32(0)[t.index] as usize;
    let matrix = matrix(t.args, 1, k.width, k.format);
    // SAFETY: task i writes row i only; the loops belong to this processor.
    unsafe { (t.loops.unpack_row)(&matrix, token, t.args.f32_mut(4, t.index * k.width, k.width)) };
}

pub(crate) fn matmul_split(k: &Matmul, threads: usize) -> Split {
    Split::new(k.rows, k.outputs(), threads)
}

pub(crate) fn matmul(k: &Matmul, t: Task<'_>) {
    let (rows, outputs) = matmul_split(k, t.threads).part(t.index);
    if outputs.is_empty() {
        return;
    }
    let x = t.args.f32(0);
    let panel_rows: Vec<&[f32]> = rows.clone().map(|r| &x[r * k.inputs..][..k.inputs]).collect();
    let matrix = matrix(t.args, 1, k.inputs, k.format);
    let scratch = t.scratch;
    let result =
        product(t.loops, &matrix, outputs.clone(), &panel_rows, &mut scratch.panel, &mut scratch.out);
    for (r, result) in rows.zip(result.chunks_exact(outputs.len())) {
        // SAFETY: no two tasks share a row and an output.
        let out = unsafe { t.args.f32_mut(4, r * k.outputs() + outputs.start, outputs.len()) };
        if k.out == Output::Add {
            out.iter_mut().zip(result).for_each(|(out, y)| *out += y);
        } else {
            out.copy_from_slice(result);
        }
    }
}

pub(crate) fn swiglu_split(k: &Swiglu, threads: usize) -> Split {
    Split::new(k.rows, k.outputs, threads)
}

pub(crate) fn swiglu(k: &Swiglu, t: Task<'_>) {
    let (rows, outputs) = swiglu_split(k, t.threads).part(t.index);
    if outputs.is_empty() {
        return;
    }
    let x = t.args.f32(0);
    let panel_rows: Vec<&[f32]> = rows.clone().map(|r| &x[r * k.inputs..][..k.inputs]).collect();
    let (gate, up) = (matrix(t.args, 1, k.inputs, k.gate), matrix(t.args, 4, k.inputs, k.up));
    let s = t.scratch;
    let gate = product(t.loops, &gate, outputs.clone(), &panel_rows, &mut s.panel, &mut s.out);
    let up = product(t.loops, &up, outputs.clone(), &panel_rows, &mut s.panel, &mut s.out2);
    let width = outputs.len();
    for (i, r) in rows.enumerate() {
        let (gate, up) = (&gate[i * width..][..width], &up[i * width..][..width]);
        // SAFETY: no two tasks share a row and an output; the loops belong to this processor.
        unsafe { (t.loops.silu_mul)(gate, up, t.args.f32_mut(7, r * k.outputs + outputs.start, width)) };
    }
}
