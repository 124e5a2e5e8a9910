//! Embedding rows, and products with quantized matrices.

use std::ops::Range;

use lily_kernels::QuantFormat;
use lily_kernels::quant::{Embed, Matmul, Output, Swiglu};

use super::{TASKS_PER_THREAD, Task};
use crate::loops::gemm::Matrix;
use crate::memory::Args;
use crate::pool::{Panels, sized};
use crate::rounded::Rows;
use crate::simd::Loops;

/// Activation rows of a panel: 48 rows of 2,048 f32 are 384 KiB, which leaves room in a second-level cache of 1 MiB.
const PANEL_ROWS: usize = 48;

/// Rows of integers that meet a block of outputs: 128 rows of 2,048, interleaved, are 544 KiB, about half of a second-level cache
/// of 1 MiB. Twice as many filled it, and prompts took 1 to 5% longer.
pub(super) const INTEGER_ROWS: usize = 128;

/// The fewest outputs of a task, so that packing its panel stays a small part of it; blocks are multiples of as many, which
/// are whole register tiles.
const LEAST_OUTPUTS: usize = 16;

/// A grid of tasks over rows and outputs.
pub(crate) struct Split {
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    panel: usize,
    output_blocks: usize,
}

impl Split {
    /// Tasks of products that take their rows as `args` says.
    fn new(rows: usize, outputs: usize, args: &Args<'_>, threads: usize) -> Self {
        let panel = if args.rounded().is_some() { INTEGER_ROWS } else { PANEL_ROWS };
        let wanted = (threads * TASKS_PER_THREAD).div_ceil(rows.div_ceil(panel).max(1));
        let output_blocks = wanted.clamp(1, outputs.div_ceil(LEAST_OUTPUTS).max(1));
        Split { rows, outputs, panel, output_blocks }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.panel).max(1) * self.output_blocks
    }

    /// Rows and outputs of a task.
    pub(crate) fn part(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let rows = index / self.output_blocks * self.panel;
        let block = self.outputs.div_ceil(self.output_blocks).next_multiple_of(LEAST_OUTPUTS);
        let outputs = (index % self.output_blocks * block).min(self.outputs);
        (rows..(rows + self.panel).min(self.rows), outputs..(outputs + block).min(self.outputs))
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

/// The activations of a launch: [rows, cols].
#[derive(Clone, Copy)]
pub(super) enum Activations<'a> {
    /// As they are.
    Exact(&'a [f32]),
    /// As integers.
    Rounded(Rows<'a>),
}

impl<'a> Activations<'a> {
    pub(super) fn of(args: &'a Args<'_>) -> Self {
        match args.rounded() {
            Some(rows) => Activations::Rounded(rows),
            None => Activations::Exact(args.f32(super::ROUNDED_OPERAND)),
        }
    }

    /// Multiplies some rows: out [rows, outputs.len()].
    pub(super) fn product<'s>(
        self,
        loops: &Loops,
        matrix: &Matrix<'_>,
        outputs: Range<usize>,
        rows: impl Iterator<Item = usize>,
        (panels, out): (&mut Panels, &'s mut Vec<f32>),
    ) -> &'s mut [f32] {
        match self {
            Activations::Exact(x) => {
                let rows: Vec<&[f32]> = rows.map(|r| &x[r * matrix.cols..][..matrix.cols]).collect();
                let panel = sized(&mut panels.floats, rows.len() * matrix.cols);
                let out = sized(out, rows.len() * outputs.len());
                // SAFETY: `loops` belongs to this processor (`Loops::new`).
                unsafe {
                    (loops.pack_panel)(&rows, matrix.format.bits, panel);
                    (loops.gemm_block)(matrix, outputs, panel, out);
                }
                out
            }
            Activations::Rounded(x) => {
                let rows: Vec<_> = rows.map(|r| x.row(r)).collect();
                let out = sized(out, rows.len() * outputs.len());
                // SAFETY: `loops` belongs to this processor (`Loops::new`).
                unsafe { (loops.integer_block)(matrix, outputs, &rows, &mut panels.integers, out) };
                out
            }
        }
    }
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

pub(crate) fn matmul_split(k: &Matmul, args: &Args<'_>, threads: usize) -> Split {
    Split::new(k.rows, k.outputs(), args, threads)
}

pub(crate) fn matmul(k: &Matmul, t: Task<'_>) {
    let (rows, outputs) = matmul_split(k, t.args, t.threads).part(t.index);
    if outputs.is_empty() {
        return;
    }
    let (x, matrix) = (Activations::of(t.args), matrix(t.args, 1, k.inputs, k.format));
    let space = (&mut t.scratch.panels, &mut t.scratch.out);
    let result = x.product(t.loops, &matrix, outputs.clone(), rows.clone(), space);
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

pub(crate) fn swiglu_split(k: &Swiglu, args: &Args<'_>, threads: usize) -> Split {
    Split::new(k.rows, k.outputs, args, threads)
}

pub(crate) fn swiglu(k: &Swiglu, t: Task<'_>) {
    let (rows, outputs) = swiglu_split(k, t.args, t.threads).part(t.index);
    if outputs.is_empty() {
        return;
    }
    let x = Activations::of(t.args);
    let (gate, up) = (matrix(t.args, 1, k.inputs, k.gate), matrix(t.args, 4, k.inputs, k.up));
    let s = t.scratch;
    let gate = x.product(t.loops, &gate, outputs.clone(), rows.clone(), (&mut s.panels, &mut s.out));
    let up = x.product(t.loops, &up, outputs.clone(), rows.clone(), (&mut s.panels, &mut s.out2));
    let width = outputs.len();
    for (i, r) in rows.enumerate() {
        let (gate, up) = (&gate[i * width..][..width], &up[i * width..][..width]);
        // SAFETY: no two tasks share a row and an output; the loops belong to this processor.
        unsafe { (t.loops.silu_mul)(gate, up, t.args.f32_mut(7, r * k.outputs + outputs.start, width)) };
    }
}
