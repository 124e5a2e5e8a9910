//! Gated softmax attention: preparation of q, k and v with the cache write, and the attention itself.
//!
//! Row `s * rows + t` is token t of sequence s. A sequence's cache holds f32 keys and values [context, kv_heads,
//! head_dim]; row r is token `positions[r]` of its sequence, and the cache already holds all tokens before it.

mod attend;
mod attend_blocks;
mod attend_combine;
mod attend_step;
mod attend_step_blocks;
mod cache_write;
mod head_norm;
mod prep;
mod rope;
mod rows;
mod split_query;
#[cfg(feature = "testing")]
mod testing;

pub use attend::{Attend, AttendMethod, RowsOptions};
pub use attend_blocks::AttendBlocks;
pub use attend_combine::AttendCombine;
pub use attend_step::AttendStep;
pub use attend_step_blocks::AttendStepBlocks;
pub use cache_write::CacheWrite;
pub use head_norm::HeadNorm;
pub use prep::AttentionPrep;
pub use rope::Rope;
pub use rope::ratio;
pub(crate) use rope::{frequency, turn};
pub use split_query::SplitQuery;

/// Tokens of a page of the cache of keys and values.
pub const PAGE_TOKENS: usize = 64;

/// The widest head that the texts take: `MOST_WIDTH` of msl/attention.h.
pub const MOST_HEAD_DIM: usize = 256;
/// Query heads that share a threadgroup at most: `MOST_PACKED` of msl/attention_rows.h.
pub const MOST_PACK: usize = 8;
/// Rows of a sequence in a fused decode step at most: `MOST_ROWS` of msl/attention_rows.h.
pub const MOST_STEP_ROWS: usize = 4;

/// Sizes that these kernels share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Heads of q; a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Heads of k and v.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of cache that the launch may read: an upper bound of every position + 1.
    pub context: usize,
}

impl AttentionShape {
    /// Rows of the launch.
    pub(crate) fn n(&self) -> usize {
        self.slots * self.rows
    }

    /// Elements of q of all rows.
    pub(crate) fn queries(&self) -> usize {
        self.n() * self.query_heads * self.head_dim
    }

    /// Elements of the new keys of all rows, and of their values.
    pub(crate) fn new_keys(&self) -> usize {
        self.n() * self.kv_heads * self.head_dim
    }

    /// Elements of the keys of all sequences, and of their values.
    pub(crate) fn cached(&self) -> usize {
        self.slots * self.context * self.kv_heads * self.head_dim
    }

    /// Elements of what [`AttendBlocks`] leaves for [`AttendCombine`].
    pub(crate) fn partial(&self, block: usize) -> usize {
        self.n() * self.query_heads * self.context.div_ceil(block) * (self.head_dim + 2)
    }

    /// Products of queries with keys and of probabilities with values, for rows at the end of the context: of a chunk
    /// only what lies below the diagonal.
    pub(crate) fn attention_flops(&self) -> u64 {
        // rows of context - rows + 1 to context keys each
        let twice_keys = crate::product(&[self.rows, 2 * self.context + 1 - self.rows]);
        crate::product(&[2, self.slots, self.query_heads, self.head_dim]).saturating_mul(twice_keys)
    }
}
