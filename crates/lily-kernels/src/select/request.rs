//! A request's parameters as the words of its row.

/// Words of a row of Requests.
pub const REQUEST_WORDS: usize = 32;

/// The most end tokens of a request.
pub const END_TOKENS: usize = 16;

/// In Counts: the prompt holds the token.
pub const SEEN_IN_PROMPT: u32 = 1 << 31;

/// How a row's token is chosen. Numbers must be such that the engine's sampler takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of most probable tokens whose probabilities sum to at least this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Keep so many most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; read with `has_counts`.
    pub repetition: f32,
    /// Subtracted from logits of tokens in the output; read with `has_counts`.
    pub presence: f32,
    /// Subtracted for each occurrence in the output; read with `has_counts`.
    pub frequency: f32,
    /// Of the random numbers.
    pub seed: u64,
    /// Tokens chosen so far.
    pub step: u32,
    /// Tokens that exist: ids from here to the plan's vocabulary are padding.
    pub vocabulary: u32,
    /// The place of its counts, bias and mask in their pools.
    pub entry: u32,
    /// It has counts, which the penalties need; they are read and kept up to date.
    pub has_counts: bool,
    /// It has a bias.
    pub has_bias: bool,
    /// It has a mask.
    pub has_mask: bool,
    /// Tokens behind which it is done; at most [`END_TOKENS`].
    pub end_tokens: Vec<u32>,
}

impl Request {
    /// Always the most probable token of a vocabulary; nothing else applied.
    pub fn greedy(vocabulary: u32) -> Self {
        Request {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            seed: 0,
            step: 0,
            vocabulary,
            entry: 0,
            has_counts: false,
            has_bias: false,
            has_mask: false,
            end_tokens: Vec::new(),
        }
    }

    /// As `msl/request.h` reads them. The logarithm of min_p and the reciprocal of the penalty are made here, so that they
    /// do not depend on a device's functions.
    ///
    /// # Panics
    /// If there are more than [`END_TOKENS`] end tokens.
    pub fn words(&self) -> [u32; REQUEST_WORDS] {
        assert!(self.end_tokens.len() <= END_TOKENS, "{} end tokens", self.end_tokens.len());
        let flags =
            u32::from(self.has_counts) | u32::from(self.has_bias) << 1 | u32::from(self.has_mask) << 2;
        let mut words = [0; REQUEST_WORDS];
        words[..15].copy_from_slice(&[
            self.temperature.to_bits(),
            self.top_p.to_bits(),
            (f64::from(self.min_p).ln() as f32).to_bits(),
            u32::try_from(self.top_k).unwrap_or(u32::MAX),
            self.repetition.to_bits(),
            self.repetition.recip().to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.step,
            self.vocabulary,
            self.entry,
            flags,
            self.end_tokens.len() as u32,
        ]);
        words[REQUEST_WORDS - END_TOKENS..][..self.end_tokens.len()].copy_from_slice(&self.end_tokens);
        words
    }
}
