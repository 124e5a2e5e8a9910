//! Products of one to four rows: gemv.cuh.

use lily_kernels::moe::{DownCombine, RoutedSwiglu};
use lily_kernels::quant::{Matmul, Method, NormMatmul, NormSwiglu, Output, Parts};
use lily_kernels::{Dispatch, PlainType, QuantFormat, Text};

use super::{buffer, by_value};

/// Columns of a row of matrix that one scale is for: the only groups that these texts take.
const GROUP: usize = 64;
/// Groups that a warp has in registers at once.
const GROUPS: usize = 4;
/// Warps of a block.
const MOST_WARPS: usize = 16;
/// Warps that a multiprocessor has at once, by the registers that the texts are bounded to.
const MOST_RESIDENT_WARPS: usize = 24;
/// Rows of matrix in a tile.
const TILE: usize = 16;
/// Threadgroup memory that a block of any GPU may have.
const MOST_SHARED: usize = 99 << 10;
/// Experts that the choice takes.
const MOST_EXPERTS: usize = 256;

text!(
    MATMUL,
    "matmul_native",
    "matmul.cu",
    "#define NORM 0
#define OUT FUNCTION_CONSTANT_3",
    ["quant.cuh", "gemv.cuh", "output.cuh"],
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
    NORM_MATMUL,
    "norm_matmul_native",
    "matmul.cu",
    "#define NORM 1
#define OUT FUNCTION_CONSTANT_3",
    ["quant.cuh", "gemv.cuh", "output.cuh"],
    [
        buffer("x", 0),
        buffer("norm", 1),
        buffer("weight", 2),
        buffer("scales", 3),
        buffer("biases", 4),
        buffer("out", 5),
        by_value(6),
    ]
);
text!(
    NORM_SWIGLU,
    "norm_swiglu_native",
    "swiglu.cu",
    "#define ROUTED 0",
    ["quant.cuh", "gemv.cuh"],
    [
        buffer("x", 0),
        buffer("norm", 1),
        buffer("gate_weight", 2),
        buffer("gate_scales", 3),
        buffer("gate_biases", 4),
        buffer("up_weight", 5),
        buffer("up_scales", 6),
        buffer("up_biases", 7),
        buffer("out", 8),
        by_value(9),
    ]
);
text!(
    ROUTED_SWIGLU,
    "routed_swiglu_native",
    "swiglu.cu",
    "#define ROUTED 1",
    ["quant.cuh", "gemv.cuh", "top_k.cuh"],
    [
        buffer("x", 0),
        buffer("norm", 1),
        buffer("logits", 2),
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
    DOWN_COMBINE,
    "down_combine_native",
    "down_combine.cu",
    "",
    ["quant.cuh", "gemv.cuh", "top_k.cuh"],
    [
        buffer("act", 0),
        buffer("logits", 1),
        buffer("shared_act", 2),
        buffer("shared_gate", 3),
        buffer("down_weight", 4),
        buffer("down_scales", 5),
        buffer("down_biases", 6),
        buffer("shared_weight", 7),
        buffer("shared_scales", 8),
        buffer("shared_biases", 9),
        buffer("out", 10),
        by_value(11),
    ]
);

pub(super) fn takes(format: QuantFormat, inputs: usize) -> bool {
    format.group == GROUP && matches!(format.bits, 4 | 8) && inputs.is_multiple_of(GROUP)
}

/// Whether a matrix of so many rows can be read too: gemv.cuh counts its words in 32 bits.
fn reaches(format: QuantFormat, rows: usize, inputs: usize) -> bool {
    takes(format, inputs) && rows * inputs / 32 * format.bits <= u32::MAX as usize
}

/// Warps that share the inputs of a tile, where there are few tiles.
fn warps(inputs: usize) -> usize {
    (inputs / GROUP).div_ceil(GROUPS).clamp(1, MOST_WARPS)
}

/// Blocks of so many tiles, in turns of a block for each: as many as fit on all multiprocessors at once, so that none has to wait for a place.
/// On an H200 a warp a tile read an lm_head of 248,320 rows in 133 microseconds, all warps of a block a tile in 107.
fn blocks(tiles: usize, warps: usize, cores: usize) -> usize {
    let most = cores * (MOST_RESIDENT_WARPS / warps).max(1);
    tiles.div_ceil(tiles.div_ceil(most))
}

/// Bytes of `Columns`.
fn columns_bytes(inputs: usize, columns: usize, rows: usize) -> usize {
    (inputs / GROUP * (2 * columns * 4 * 16 + 4 * rows)).next_multiple_of(16)
}

pub(super) fn output_kind(out: Output) -> u32 {
    match out {
        Output::Activation => 0,
        Output::F32 => 1,
        Output::Add => 2,
        Output::Fine => 3,
    }
}

fn dispatch(
    text: &'static Text,
    constants: Vec<u32>,
    params: Vec<u32>,
    grid: [usize; 3],
    warps: usize,
    shared: usize,
) -> Option<Dispatch> {
    // Beside it stand the parts of sums, at most 16 KiB.
    (shared <= MOST_SHARED - (20 << 10)).then(|| {
        let mut dispatch = Dispatch::new(text, constants, params, grid, [32 * warps, 1, 1]);
        dispatch.threadgroup_bytes = vec![shared.next_multiple_of(16)];
        dispatch
    })
}

fn parts(parts: Parts, eps: f32) -> Vec<u32> {
    let [a, b, c, _] = parts.widths().map(|w| w as u32);
    vec![parts.total() as u32, a, b, c, eps.to_bits()]
}

/// Of few rows.
pub(super) fn matmul(k: &Matmul, cores: usize) -> Option<Dispatch> {
    if k.method != Method::Rows || !reaches(k.format, k.outputs(), k.inputs) {
        return None;
    }
    let warps = warps(k.inputs);
    let blocks = blocks(k.outputs().div_ceil(TILE), warps, cores);
    let constants = [k.format.bits, k.inputs, k.rows, output_kind(k.out) as usize, 0, warps];
    let (constants, grid) = (constants.map(|n| n as u32).into(), [blocks, 1, 1]);
    dispatch(&MATMUL, constants, parts(k.parts, 0.0), grid, warps, columns_bytes(k.inputs, k.rows, k.rows))
}

/// With the norm in front.
pub(super) fn norm_matmul(k: &NormMatmul, cores: usize) -> Option<Dispatch> {
    if !reaches(k.format, k.outputs(), k.inputs) {
        return None;
    }
    let warps = warps(k.inputs);
    let blocks = blocks(k.outputs().div_ceil(TILE), warps, cores);
    let norm_is_f32 = usize::from(k.norm == PlainType::F32);
    let constants = [k.format.bits, k.inputs, k.rows, output_kind(k.out) as usize, norm_is_f32, warps];
    let grid = [blocks, 1, 1];
    let shared = columns_bytes(k.inputs, 2 * k.rows, k.rows);
    let constants = constants.map(|n| n as u32).into();
    dispatch(&NORM_MATMUL, constants, parts(k.parts, k.eps), grid, warps, shared)
}

/// Of the shared expert.
pub(super) fn norm_swiglu(k: &NormSwiglu) -> Option<Dispatch> {
    if k.gate != k.up || !reaches(k.gate, k.outputs, k.inputs) {
        return None;
    }
    let warps = warps(k.inputs);
    let norm_is_f32 = usize::from(k.norm == PlainType::F32);
    let constants = [k.gate.bits, k.inputs, k.rows, 0, norm_is_f32, warps].map(|n| n as u32).into();
    let params = vec![k.outputs as u32, 0, 0, k.eps.to_bits()];
    let grid = [k.outputs.div_ceil(TILE / 2), 1, 1];
    dispatch(&NORM_SWIGLU, constants, params, grid, warps, columns_bytes(k.inputs, 2 * k.rows, k.rows))
}

/// Of the chosen experts.
pub(super) fn routed_swiglu(k: &RoutedSwiglu) -> Option<Dispatch> {
    if k.gate != k.up
        || !reaches(k.gate, k.experts * k.outputs, k.inputs)
        || k.experts > MOST_EXPERTS
        || k.top_k > 32
    {
        return None;
    }
    let warps = warps(k.inputs);
    let norm_is_f32 = usize::from(k.norm == PlainType::F32);
    let constants = [k.gate.bits, k.inputs, 1, 0, norm_is_f32, warps].map(|n| n as u32).into();
    let params = vec![k.outputs as u32, k.experts as u32, k.top_k as u32, k.eps.to_bits()];
    // Blocks of two tiles, which would choose once for both and all have a place at once, took 11.5 microseconds instead of 9.5 on an H200.
    let grid = [k.outputs.div_ceil(TILE / 2), k.rows * k.top_k, 1];
    dispatch(&ROUTED_SWIGLU, constants, params, grid, warps, columns_bytes(k.inputs, 2, 1))
}

/// The experts' second half.
pub(super) fn down_combine(k: &DownCombine) -> Option<Dispatch> {
    let same = k.format == k.shared_format && k.inputs == k.shared_inputs;
    let warps = (k.inputs / GROUP).div_ceil(GROUPS);
    let all = (k.top_k + 1) * warps;
    if !same || !reaches(k.format, k.experts * k.outputs, k.inputs) || k.experts > MOST_EXPERTS || all > 32 {
        return None;
    }
    let constants = [k.format.bits, k.inputs, 1, k.top_k, warps].map(|n| n as u32).into();
    let params = vec![k.experts as u32, k.outputs as u32];
    let grid = [k.outputs.div_ceil(TILE), k.rows, 1];
    let shared = (k.top_k + 1) * columns_bytes(k.inputs, 1, 1);
    dispatch(&DOWN_COMBINE, constants, params, grid, all, shared)
}
