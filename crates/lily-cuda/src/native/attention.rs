//! Attention of a decode step (attend_step.cu, attend_combine.cu) and of a prompt (attend_tiles.cu).

use lily_kernels::attention::{
    Attend, AttendCombine, AttendMethod, AttendStep, AttendStepBlocks, AttentionPrep, AttentionShape,
    RowsOptions, ratio,
};
use lily_kernels::{Dispatch, PlainType, Text};

use super::{buffer, by_value};

/// What these texts are for: heads of 256, eight of them to a KV head.
const WIDTH: usize = 256;
const HEADS: usize = 8;
/// Keys of a block where a step is one launch of the plan: those of plans in blocks (`Profile::attention_block`), so that a sequence's bits
/// do not depend on which way its step runs.
const BLOCK: usize = 128;
/// Keys of a block of a sequence whose position is `REACH` or more: a whole number of the plan's blocks. It goes by the sequence's own
/// position, so that its bits do not depend on those beside it. A step of an H200 with blocks of 128 and of 512 everywhere: 1.690 and 1.788 ms
/// after 4,096 tokens, 1.722 and 1.793 after 8,192, 1.793 and 1.805 after 16,384; earlier texts 1.774 and 1.691 after 32,768.
const FAR: usize = 512;
const REACH: usize = 16_384;
/// Bytes of `Shared` in attend_step.cu.
const SHARED: usize =
    8 * 2 * 32 * 16 + 4 * (HEADS * WIDTH + WIDTH + WIDTH + 2 * 8 * HEADS + 8 * HEADS * WIDTH);
/// Warps of a block of attend_tiles.cu, of two tokens each: four where eight would leave multiprocessors idle.
const WARPS: [usize; 2] = [8, 4];
/// Its threadgroup memory: two tiles of 32 keys and three of values.
const TILES: usize = 5 * 32 * WIDTH * 2;

text!(
    STEP,
    "attend_step_native",
    "attend_step.cu",
    "#define WHOLE 1",
    [],
    [
        buffer("qg", 0),
        buffer("k", 1),
        buffer("v", 2),
        buffer("q_norm", 3),
        buffer("k_norm", 4),
        buffer("positions", 5),
        buffer("out", 6),
        buffer("keys", 7),
        buffer("values", 8),
        buffer("slots", 9),
        by_value(10),
    ]
);
text!(
    BLOCKS,
    "attend_step_blocks_native",
    "attend_step.cu",
    "#define WHOLE 0",
    [],
    [
        buffer("qg", 0),
        buffer("k", 1),
        buffer("v", 2),
        buffer("q_norm", 3),
        buffer("k_norm", 4),
        buffer("positions", 5),
        buffer("partial", 6),
        buffer("keys", 7),
        buffer("values", 8),
        buffer("slots", 9),
        by_value(10),
    ]
);
text!(
    COMBINE,
    "attend_combine_native",
    "attend_combine.cu",
    "",
    [],
    [buffer("partial", 0), buffer("qg", 1), buffer("positions", 2), buffer("out", 3), by_value(4),]
);
text!(
    ATTEND_TILES,
    "attend_tiles_native",
    "attend_tiles.cu",
    "",
    [],
    [
        buffer("q", 0),
        buffer("qg", 1),
        buffer("positions", 2),
        buffer("out", 3),
        buffer("keys", 4),
        buffer("values", 5),
        buffer("slots", 6),
        by_value(7),
    ]
);

/// What scores are multiplied by: powers of 2 take the place of powers of e.
fn score_scale() -> f32 {
    (std::f64::consts::LOG2_E / (WIDTH as f64).sqrt()) as f32
}

/// Steps that the texts take.
fn is_for(s: &AttentionShape) -> bool {
    (s.rows, s.head_dim, s.query_heads) == (1, WIDTH, HEADS * s.kv_heads)
}

/// Keys of a block from `REACH` on, where blocks have so many before.
fn far(block: usize) -> usize {
    block.max(FAR / block * block)
}

/// `most` blocks of the grid for a KV head: one for each multiprocessor.
fn step_of(
    text: &'static Text,
    prep: &AttentionPrep,
    options: RowsOptions,
    block: usize,
    most: usize,
) -> Option<Dispatch> {
    let s = &prep.shape;
    // These texts always pack query heads and read whole rows: without either mechanism it is the shared text.
    if !is_for(s) || options.pack == 1 || !options.coalesced {
        return None;
    }
    let is_f32 = |kind| u32::from(kind == PlainType::F32);
    let (blocks, (high, low)) = (s.context.div_ceil(block), ratio(prep.rope_theta, prep.rotary_dim));
    let sizes = [s.kv_heads, block, blocks, prep.rotary_dim / 2, REACH, far(block)].map(|n| n as u32);
    let params = sizes.into_iter().chain([high, low, prep.eps, score_scale()].map(f32::to_bits)).collect();
    let constants = vec![is_f32(prep.q_norm), is_f32(prep.k_norm)];
    let mut dispatch =
        Dispatch::new(text, constants, params, [blocks.min(most), s.kv_heads, s.slots], [256, 1, 1]);
    dispatch.threadgroup_bytes = vec![SHARED];
    Some(dispatch)
}

fn combine_of(
    text: &'static Text,
    query_heads: usize,
    rows: usize,
    context: usize,
    block: usize,
) -> Dispatch {
    let params = [query_heads, block, context.div_ceil(block), REACH, far(block)].map(|n| n as u32).into();
    Dispatch::new(text, vec![], params, [rows * query_heads, WIDTH / 32, 1], [512, 1, 1])
}

/// A step over a short cache: one block of keys.
pub(super) fn step(k: &AttendStep) -> Option<Dispatch> {
    if k.prep.shape.context <= BLOCK { step_of(&STEP, &k.prep, k.options, BLOCK, 1) } else { None }
}

/// Blocks of a step over a long cache.
pub(super) fn blocks(k: &AttendStepBlocks, cores: usize) -> Option<Dispatch> {
    step_of(&BLOCKS, &k.prep, k.options, k.block, (cores / k.prep.shape.kv_heads).max(1))
}

/// Their sum.
pub(super) fn combine(k: &AttendCombine) -> Option<Dispatch> {
    let s = &k.shape;
    is_for(s).then(|| combine_of(&COMBINE, s.query_heads, s.slots, s.context, k.block))
}

/// Many rows.
pub(super) fn tiles(k: &Attend, cores: usize) -> Option<Dispatch> {
    let s = &k.shape;
    if k.method != AttendMethod::Flash || (s.head_dim, s.query_heads) != (WIDTH, HEADS * s.kv_heads) {
        return None;
    }
    let params = vec![s.rows as u32, s.kv_heads as u32, score_scale().to_bits()];
    let blocks = |warps: usize| s.rows.div_ceil(2 * warps) * s.kv_heads;
    let warps = WARPS.into_iter().find(|warps| blocks(*warps) * s.slots >= cores).unwrap_or(WARPS[1]);
    let (grid, threads) = ([blocks(warps), s.slots, 1], [32 * warps, 1, 1]);
    let mut dispatch = Dispatch::new(&ATTEND_TILES, vec![], params, grid, threads);
    dispatch.threadgroup_bytes = vec![TILES];
    Some(dispatch)
}
