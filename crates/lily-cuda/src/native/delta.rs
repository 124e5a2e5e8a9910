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
/// Tokens that go through scratch memory at once: so many for each multiprocessor, and at most so many. On an H200 a layer's 4,096 tokens take
/// 1,036 microseconds in two pieces, 1,029 in one.
const TOKENS_OF_A_CORE: usize = 16;
const MOST_TOKENS: usize = 2048;

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
pub(super) fn stream(k: &DeltaStream, cores: usize) -> Option<Native> {
    let sizes = (k.slots, k.key_dim, k.value_dim, k.taps) == (1, DIM, DIM, TAPS);
    if !sizes || k.scan != Scan::Registers || k.value_heads / k.key_heads > 32 {
        return None;
    }
    let most = (TOKENS_OF_A_CORE * cores).min(MOST_TOKENS);
    let piece = |start: usize| {
        let count = most.min(k.rows - start);
        let sizes = [k.rows, start, count, k.key_heads, k.value_heads];
        let params: Vec<u32> = sizes.map(|n| n as u32).into_iter().chain([L2_EPS.to_bits()]).collect();
        let constants = vec![is_f32(k.conv), is_f32(k.a_log), is_f32(k.dt_bias)];
        let kept = if start + count == k.rows { TAPS - 1 } else { 0 };
        let grid = [(count + kept).div_ceil(TOKENS), k.key_heads, 1];
        let prep = Dispatch::new(&PREP, constants, params.clone(), grid, [32 * TOKENS, 1, 1]);
        [prep, Dispatch::new(&SCAN, vec![], params, [DIM / ROWS, k.value_heads, 1], [128, 1, 1])]
    };
    let scratch = most.min(k.rows) * (2 * k.key_heads * DIM + k.value_heads * (DIM + 4));
    Some(Native { launches: (0..k.rows).step_by(most).flat_map(piece).collect(), scratch_bytes: 4 * scratch })
}
