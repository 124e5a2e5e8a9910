//! What a scheduler says of the choice of tokens, where the device makes it.

use crate::SequenceId;

/// How the tokens of a sequence are chosen: the numbers of `lily_protocol::Sampling`, which mean the same here, and what may not be
/// chosen. The same from a sequence's first step to its last.
#[derive(Clone, Debug, PartialEq)]
pub struct Choosing {
    /// 0 is greedy.
    pub temperature: f32,
    /// Of the most probable tokens, as few as sum to this; 1 keeps all.
    pub top_p: f32,
    /// Tokens of at least this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// So many most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Divides or multiplies logits of tokens in prompt or output; 1 is off.
    pub repetition: f32,
    /// Subtracted from logits of tokens in the output.
    pub presence: f32,
    /// Subtracted for each occurrence in the output.
    pub frequency: f32,
    /// Of the random numbers.
    pub seed: u64,
    /// Added to the logits of these ids, each of them at most once.
    pub bias: Vec<(u32, f32)>,
    /// Never chosen.
    pub banned: Vec<u32>,
    /// Behind these the sequence takes no more tokens; at most [`Choosing::MOST_ENDS`].
    pub ends: Vec<u32>,
    /// Ids from here on do not exist.
    pub vocabulary: usize,
}

impl Choosing {
    /// The most end tokens.
    pub const MOST_ENDS: usize = lily_kernels::select::END_TOKENS;

    /// Whether the choice depends on what was said before.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }
}

/// A row of steps that choose their tokens on the device.
#[derive(Clone, Copy, Debug)]
pub struct ChoosingRow<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// The token that the first step appends.
    pub token: u32,
    /// How its tokens are chosen.
    pub choosing: &'a Choosing,
    /// What the sequence began with.
    pub prompt: &'a [u32],
    /// What was chosen since, `token` included; as many are behind it in the order of random numbers.
    pub output: &'a [u32],
}

/// What a step on the device chose for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// This token.
    Token(u32),
    /// Nothing: every token is banned, or the sequence was done before.
    NoneLeft,
    /// Nothing: a logit is NaN or infinite.
    NotFinite,
}
