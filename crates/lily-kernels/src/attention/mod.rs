//! Gated softmax attention: preparation of q, k and v with the cache write, and the attention itself.
//!
//! Row `s * rows + t` is token t of sequence s. A sequence's cache holds f32 keys and values [context, kv_heads,
//! head_dim]; row r is token `positions[r]` of its sequence, and the cache already holds all tokens before it.

mod attend;
mod prep;

pub use attend::Attend;
pub use prep::AttentionPrep;

/// Sizes that both kernels share.
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
    /// Products of queries with keys and of probabilities with values, for rows at the end of the context: of a chunk
    /// only what lies below the diagonal.
    pub(crate) fn attention_flops(&self) -> u64 {
        let keys: usize = (0..self.rows).map(|r| self.context - (self.rows - 1 - r)).sum();
        4 * (self.slots * keys * self.query_heads * self.head_dim) as u64
    }
}
