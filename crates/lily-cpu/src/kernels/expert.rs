//! The experts: each active expert's matrix meets all of its rows.

use std::ops::Range;

use lily_kernels::QuantFormat;
use lily_kernels::moe::{ExpertDown, ExpertSwiglu};

use super::matmul::{Activations, INTEGER_ROWS, matrix};
use super::{TASKS_PER_THREAD, Task};
use crate::loops::gemm::{Matrix, TILE_ROWS};
use crate::memory::Args;

/// Rows of an expert that are multiplied at once: eight register tiles.
const ROWS_AT_ONCE: usize = 8 * TILE_ROWS;

/// Rows of an expert that are multiplied at once, as `args` has them.
fn rows_at_once(args: &Args<'_>) -> usize {
    if args.rounded().is_some() { INTEGER_ROWS } else { ROWS_AT_ONCE }
}

/// The fewest outputs of a task.
const LEAST_OUTPUTS: usize = 32;

/// Tasks are (place in the list of active experts) x (block of outputs).
fn blocks(experts: usize, rows: usize, top_k: usize, outputs: usize, threads: usize) -> usize {
    let active = experts.min(rows * top_k);
    (threads * TASKS_PER_THREAD).div_ceil(active).clamp(1, outputs.div_ceil(LEAST_OUTPUTS))
}

fn block(outputs: usize, blocks: usize, i: usize) -> Range<usize> {
    let size = outputs.div_ceil(blocks).next_multiple_of(16);
    (i * size).min(outputs)..((i + 1) * size).min(outputs)
}

/// Expert and pair numbers of a task; `None` where the list of active experts is shorter than it could be.
fn work<'a>(t: &Task<'a>, blocks: usize) -> Option<(usize, &'a [u32])> {
    let (offsets, order, active) = (t.args.u32(1), t.args.u32(2), t.args.u32(3));
    let place = t.index / blocks;
    if place >= active[0] as usize {
        return None;
    }
    let expert = active[1 + place] as usize;
    Some((expert, &order[offsets[expert] as usize..offsets[expert + 1] as usize]))
}

/// One expert's matrix of a stack.
fn of_expert<'a>(stack: Matrix<'a>, expert: usize, outputs: usize, format: QuantFormat) -> Matrix<'a> {
    let part = |bytes: &'a [u8], row: usize| &bytes[expert * outputs * row..][..outputs * row];
    let (w, s) = (format.row_bytes(stack.cols), format.scale_bytes(stack.cols));
    Matrix {
        weight: part(stack.weight, w),
        scales: part(stack.scales, s),
        biases: part(stack.biases, s),
        ..stack
    }
}

pub(crate) fn swiglu_tasks(k: &ExpertSwiglu, threads: usize) -> usize {
    k.experts.min(k.rows * k.top_k) * blocks(k.experts, k.rows, k.top_k, k.outputs, threads)
}

pub(crate) fn swiglu(k: &ExpertSwiglu, t: Task<'_>) {
    let blocks = blocks(k.experts, k.rows, k.top_k, k.outputs, t.threads);
    let outputs = block(k.outputs, blocks, t.index % blocks);
    let Some((expert, pairs)) = work(&t, blocks) else { return };
    if outputs.is_empty() {
        return;
    }
    let x = Activations::of(t.args);
    let gate = of_expert(matrix(t.args, 4, k.inputs, k.gate), expert, k.outputs, k.gate);
    let up = of_expert(matrix(t.args, 7, k.inputs, k.up), expert, k.outputs, k.up);
    let s = t.scratch;
    for pairs in pairs.chunks(rows_at_once(t.args)) {
        let rows = || pairs.iter().map(|p| *p as usize / k.top_k);
        let gate = x.product(t.loops, &gate, outputs.clone(), rows(), (&mut s.panels, &mut s.out));
        let up = x.product(t.loops, &up, outputs.clone(), rows(), (&mut s.panels, &mut s.out2));
        let width = outputs.len();
        for (i, p) in pairs.iter().enumerate() {
            let (gate, up) = (&gate[i * width..][..width], &up[i * width..][..width]);
            let start = *p as usize * k.outputs + outputs.start;
            // SAFETY: a pair belongs to one expert, and no two tasks share an expert and an output; the loops belong to
            // this processor.
            unsafe { (t.loops.silu_mul)(gate, up, t.args.f32_mut(10, start, width)) };
        }
    }
}

pub(crate) fn down_tasks(k: &ExpertDown, threads: usize) -> usize {
    k.experts.min(k.rows * k.top_k) * blocks(k.experts, k.rows, k.top_k, k.outputs, threads)
}

pub(crate) fn down(k: &ExpertDown, t: Task<'_>) {
    let blocks = blocks(k.experts, k.rows, k.top_k, k.outputs, t.threads);
    let outputs = block(k.outputs, blocks, t.index % blocks);
    let Some((expert, pairs)) = work(&t, blocks) else { return };
    if outputs.is_empty() {
        return;
    }
    let act = Activations::of(t.args);
    let down = of_expert(matrix(t.args, 4, k.inputs, k.format), expert, k.outputs, k.format);
    let s = t.scratch;
    for pairs in pairs.chunks(rows_at_once(t.args)) {
        let rows = pairs.iter().map(|p| *p as usize);
        let result = act.product(t.loops, &down, outputs.clone(), rows, (&mut s.panels, &mut s.out));
        for (p, result) in pairs.iter().zip(result.chunks_exact(outputs.len())) {
            let start = *p as usize * k.outputs + outputs.start;
            // SAFETY: a pair belongs to one expert, and no two tasks share an expert and an output.
            unsafe { t.args.f32_mut(7, start, outputs.len()) }.copy_from_slice(result);
        }
    }
}
