//! What the launches for few rows share.

use super::{AttentionShape, MOST_HEAD_DIM, MOST_PACK, RowsOptions};

/// How query heads become threadgroups.
pub(super) struct Packs {
    /// Query heads of one.
    pub(super) pack: usize,
    /// Threadgroups of a row and a KV head.
    pub(super) packs: usize,
    /// Threads of one.
    pub(super) threads: usize,
}

impl Packs {
    /// `None` if the texts do not take heads so wide. More than [`MOST_PACK`] heads become several threadgroups.
    pub(super) fn new(shape: &AttentionShape, options: RowsOptions) -> Option<Packs> {
        let group = shape.query_heads / shape.kv_heads;
        let pack = (1..=options.pack.min(MOST_PACK)).rev().find(|p| group.is_multiple_of(*p))?;
        // A simdgroup with one head has registers left for more threads: 16 parts of the keys, else 8.
        let threads = if pack == 1 { 512 } else { 256 };
        (shape.head_dim <= MOST_HEAD_DIM).then_some(Packs { pack, packs: group / pack, threads })
    }
}

/// What scores are multiplied by: powers of 2 take the place of powers of e.
pub(super) fn score_scale(head_dim: usize) -> f32 {
    (std::f64::consts::LOG2_E / (head_dim as f64).sqrt()) as f32
}
