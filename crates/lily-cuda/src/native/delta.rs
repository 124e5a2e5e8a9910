//! Gated DeltaNet: delta_step.cu for a token, delta_prep.cu and delta_scan.cu for a prompt.

use lily_kernels::delta::{DeltaStep, DeltaStream, L2_EPS, Scan};
use lily_kernels::{Dispatch, PlainType, TextParameter};

use super::{Native, SCRATCH_PARAMETER, buffer, by_value};

/// Width of the heads, and taps of the convolution, that these texts are for.
const DIM: usize = 128;
const TAPS: usize = 4;
/// Tokens of a block of delta_prep.cu.
const TOKENS: usize = 8;
/// Rows of the state of a block of delta_scan.cu.
const ROWS: usize = 32;

text!(
    STEP,
    "delta_step_native",
    "delta_step.cu",
    "",
    ["delta.cuh"],
    [
        buffer("raw", 0),
        buffer("z", 1),
        buffer("a", 2),
        buffer("b", 3),
        buffer("conv", 4),
        buffer("a_log", 5),
        buffer("dt_bias", 6),
        buffer("norm", 7),
        buffer("out", 8),
        buffer("conv_state", 9),
        buffer("state", 10),
        buffer("slots", 11),
        by_value(12),
    ]
);
/// What both texts of a prompt take.
const STREAM: &[TextParameter] = &[
    buffer("raw", 0),
    buffer("a", 1),
    buffer("b", 2),
    buffer("conv", 3),
    buffer("a_log", 4),
    buffer("dt_bias", 5),
    buffer("y", 6),
    buffer("conv_state", 7),
    buffer("state", 8),
    buffer("slots", 9),
    by_value(10),
    SCRATCH_PARAMETER,
];
text!(PREP, "delta_prep_native", "delta_prep.cu", "", ["delta.cuh"], STREAM);
text!(SCAN, "delta_scan_native", "delta_scan.cu", "", ["delta.cuh"], STREAM);

fn is_f32(kind: PlainType) -> u32 {
    u32::from(kind == PlainType::F32)
}

/// Of one token.
pub(super) fn step(k: &DeltaStep) -> Option<Dispatch> {
    if (k.rows, k.key_dim, k.value_dim, k.taps) != (1, DIM, DIM, TAPS) {
        return None;
    }
    let constants =
        vec![u32::from(k.gated), is_f32(k.conv), is_f32(k.a_log), is_f32(k.dt_bias), is_f32(k.norm)];
    let params = vec![k.key_heads as u32, k.value_heads as u32, L2_EPS.to_bits(), k.eps.to_bits()];
    Some(Dispatch::new(&STEP, constants, params, [k.value_heads, k.slots, 1], [512, 1, 1]))
}

/// Of a prompt.
pub(super) fn stream(k: &DeltaStream) -> Option<Native> {
    let sizes = (k.slots, k.key_dim, k.value_dim, k.taps) == (1, DIM, DIM, TAPS);
    if !sizes || k.scan != Scan::Registers || k.value_heads / k.key_heads > 32 {
        return None;
    }
    let params = vec![k.rows as u32, k.key_heads as u32, k.value_heads as u32, L2_EPS.to_bits()];
    let constants = vec![is_f32(k.conv), is_f32(k.a_log), is_f32(k.dt_bias)];
    let grid = [(k.rows + TAPS - 1).div_ceil(TOKENS), k.key_heads, 1];
    let prep = Dispatch::new(&PREP, constants, params.clone(), grid, [32 * TOKENS, 1, 1]);
    let scan = Dispatch::new(&SCAN, vec![], params, [DIM / ROWS, k.value_heads, 1], [128, 1, 1]);
    let scratch = k.rows * (2 * k.key_heads * DIM + k.value_heads * (DIM + 4));
    Some(Native { launches: vec![prep, scan], scratch_bytes: 4 * scratch })
}
