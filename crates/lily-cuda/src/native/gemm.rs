//! Products of many rows: gemm.cuh.

use lily_kernels::Dispatch;
use lily_kernels::moe::{GroupedMatmul, GroupedSwiglu, Scatter};
use lily_kernels::quant::{Matmul, Method, Swiglu};

use super::gemv::{output_kind, takes};
use super::{buffer, by_value};

/// Inputs come by so many: scales of four groups in one piece.
const FOUR_GROUPS: usize = 256;

/// How a block is cut: sixteens of the matrix and eights of x of a warp, warps along either.
#[derive(Clone, Copy, Debug)]
struct Shape {
    mt: usize,
    nt: usize,
    wm: usize,
    wn: usize,
}

/// From the largest on. The larger a block, the less often weights are dequantized and rows of x read; the first whose blocks keep every
/// multiprocessor busy is taken, or the last. On an H200, in_proj (12,352 by 2,048) of 4,096 rows took 720 us with the first shape, 899 with
/// 256 by 64 and 955 with 64 by 128 in twice as many warps, 1,014 with 256 by 128, whose sums do not fit into registers; of 512 rows
/// 130 with the first and 110 with the second.
const SHAPES: [Shape; 3] = [
    Shape { mt: 2, nt: 16, wm: 4, wn: 1 },
    Shape { mt: 2, nt: 8, wm: 4, wn: 1 },
    Shape { mt: 2, nt: 4, wm: 4, wn: 1 },
];

impl Shape {
    fn of(outputs: usize, rows: usize, cores: usize) -> Shape {
        let busy = |s: &&Shape| {
            let blocks = s.grid(outputs, rows).iter().product::<usize>();
            blocks >= if s.nt > 8 { 4 * cores } else { cores * 9 / 10 }
        };
        *SHAPES.iter().find(busy).unwrap_or(&SHAPES[SHAPES.len() - 1])
    }

    fn grid(&self, outputs: usize, rows: usize) -> [usize; 3] {
        [outputs.div_ceil(16 * self.mt * self.wm), rows.div_ceil(8 * self.nt * self.wn), 1]
    }

    fn threads(&self) -> [usize; 3] {
        [32 * self.wm * self.wn, 1, 1]
    }

    fn words(&self) -> [u32; 4] {
        [self.mt, self.nt, self.wm, self.wn].map(|n| n as u32)
    }

    /// `Stages` of gemm.cuh; afterwards the warps' sums on their way out.
    fn shared(&self, bits: usize) -> usize {
        let (rows, tokens) = (16 * self.mt * self.wm, 8 * self.nt * self.wn);
        let stages = 4 * rows * 8 * bits + 2 * 2 * rows * 8 + 2 * tokens * 128;
        stages.max(self.wm * self.wn * 8 * (16 * self.mt + 4) * 4)
    }
}

text!(
    MATMUL,
    "matmul_tiles_native",
    "matmul_tiles.cu",
    "#define OUT FUNCTION_CONSTANT_1",
    ["quant.cuh", "gemm.cuh", "output.cuh"],
    [
        buffer("x", 0),
        buffer("weight", 1),
        buffer("scales", 2),
        buffer("biases", 3),
        buffer("out", 4),
        by_value(5),
    ]
);
text!(
    SWIGLU,
    "swiglu_tiles_native",
    "swiglu_tiles.cu",
    "",
    ["quant.cuh", "gemm.cuh"],
    [
        buffer("x", 0),
        buffer("gate_weight", 1),
        buffer("gate_scales", 2),
        buffer("gate_biases", 3),
        buffer("up_weight", 4),
        buffer("up_scales", 5),
        buffer("up_biases", 6),
        buffer("out", 7),
        by_value(8),
    ]
);
text!(
    GROUPED_SWIGLU,
    "grouped_swiglu_native",
    "grouped.cu",
    "#define SWIGLU 1",
    ["quant.cuh", "gemm.cuh"],
    [
        buffer("x", 0),
        buffer("order", 1),
        buffer("tiles", 2),
        buffer("gate_weight", 3),
        buffer("gate_scales", 4),
        buffer("gate_biases", 5),
        buffer("up_weight", 6),
        buffer("up_scales", 7),
        buffer("up_biases", 8),
        buffer("out", 9),
        by_value(10),
    ]
);
text!(
    GROUPED_MATMUL,
    "grouped_matmul_native",
    "grouped.cu",
    "#define SWIGLU 0",
    ["quant.cuh", "gemm.cuh"],
    [
        buffer("x", 0),
        buffer("order", 1),
        buffer("tiles", 2),
        buffer("weights", 3),
        buffer("weight", 4),
        buffer("scales", 5),
        buffer("biases", 6),
        buffer("out", 7),
        by_value(8),
    ]
);

/// Of any number of rows.
pub(super) fn matmul(k: &Matmul, cores: usize) -> Option<Dispatch> {
    if !takes(k.format, k.inputs) || !k.inputs.is_multiple_of(FOUR_GROUPS) {
        return None;
    }
    debug_assert!(k.method == Method::Tiles);
    let (shape, [a, b, c, _]) = (Shape::of(k.outputs(), k.rows, cores), k.parts.widths());
    let mut constants = vec![k.format.bits as u32, output_kind(k.out)];
    constants.extend(shape.words());
    let params = [k.rows, k.inputs, k.outputs(), a, b, c].map(|n| n as u32).into();
    let mut dispatch =
        Dispatch::new(&MATMUL, constants, params, shape.grid(k.outputs(), k.rows), shape.threads());
    dispatch.threadgroup_bytes = vec![shape.shared(k.format.bits)];
    Some(dispatch)
}

/// Gate and up side by side.
pub(super) fn swiglu(k: &Swiglu, cores: usize) -> Option<Dispatch> {
    if k.method != Method::Tiles
        || k.gate != k.up
        || !takes(k.gate, k.inputs)
        || !k.inputs.is_multiple_of(FOUR_GROUPS)
    {
        return None;
    }
    let shape = Shape::of(2 * k.outputs, k.rows, cores);
    let mut constants = vec![k.gate.bits as u32];
    constants.extend(shape.words());
    let params = [k.rows, k.inputs, k.outputs].map(|n| n as u32).into();
    // Half of a warp's sixteens are of up.
    let mut grid = shape.grid(2 * k.outputs, k.rows);
    grid[0] = k.outputs.div_ceil(8 * shape.mt * shape.wm);
    let mut dispatch = Dispatch::new(&SWIGLU, constants, params, grid, shape.threads());
    dispatch.threadgroup_bytes = vec![shape.shared(k.gate.bits)];
    Some(dispatch)
}

/// Outputs of a block of grouped.cu: four warps, 16 outputs of gate and up each, or 32 of one matrix.
const PAIRS: usize = 64;
const OUTPUTS: usize = 128;

/// The experts' first half.
pub(super) fn grouped_swiglu(k: &GroupedSwiglu) -> Option<Dispatch> {
    if k.gate != k.up || !takes(k.gate, k.inputs) || !k.inputs.is_multiple_of(FOUR_GROUPS) {
        return None;
    }
    let blocks = k.outputs.div_ceil(PAIRS);
    let params = [k.top_k, k.outputs, k.inputs, blocks].map(|n| n as u32).into();
    let grid = [blocks * k.grouping().max_tiles(), 1, 1];
    Some(Dispatch::new(&GROUPED_SWIGLU, vec![k.gate.bits as u32], params, grid, [128, 1, 1]))
}

/// Their second.
pub(super) fn grouped_matmul(k: &GroupedMatmul) -> Option<Dispatch> {
    if !takes(k.format, k.inputs) || !k.inputs.is_multiple_of(FOUR_GROUPS) {
        return None;
    }
    let scatter = match k.scatter {
        Scatter::None => 0,
        Scatter::Pairs => 1,
        Scatter::Weighted => 2,
    };
    let blocks = k.outputs.div_ceil(OUTPUTS);
    let params = [k.top_k, k.outputs, k.inputs, blocks].map(|n| n as u32).into();
    let grid = [blocks * k.grouping().max_tiles(), 1, 1];
    let constants = vec![k.format.bits as u32, u32::from(k.gather), scatter];
    Some(Dispatch::new(&GROUPED_MATMUL, constants, params, grid, [128, 1, 1]))
}
