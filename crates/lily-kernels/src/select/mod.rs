//! The choice of the next token on the device: what `lily-engine`'s sampler does, in float where that has f64.
//!
//! Requests change from step to step while a plan does not, so everything about a request stands in buffers. Two launches
//! follow the last product of a step:
//!
//! 1. [`SelectSlices`], a threadgroup for each slice of each row's vocabulary: bias, penalties and mask; the largest adjusted
//!    logit of the slice and the slice's sum of exponentials.
//! 2. [`SelectToken`], a threadgroup a row: top_k, top_p, min_p, the draw, and everything that the next step starts from.
//!
//! # Buffers
//!
//! | buffer | elements | meaning |
//! |---|---|---|
//! | Logits | f32 `[rows, vocab]` | of the head; ids at or above a request's `vocabulary` may hold anything |
//! | Requests | u32 `[rows, REQUEST_WORDS]` | [`Request::words`]; a launch of [`SelectToken`] adds 1 to `step` |
//! | Counts | u32 `[entries, vocab]` | [`SEEN_IN_PROMPT`] where the prompt holds the token, plus its occurrences in the output; a launch of [`SelectToken`] adds 1 to the chosen token's |
//! | Bias | f32 `[entries, vocab]` | added to the logits |
//! | Mask | u32 `[entries, ceil(vocab / 32)]` | token i may be chosen if bit `i % 32` of word `i / 32` is set |
//! | Tokens, Positions | u32 `[rows]` | the step's input |
//! | Slots | u32 `[rows, SLOT_WORDS]`, and anything behind | the step's table of sequences; only the done flags are read |
//! | NextTokens, NextPositions | u32 `[rows]` | the next step's input; may be the buffers Tokens and Positions |
//! | NextSlots | u32 `[rows, SLOT_WORDS]`, and anything behind | the next step's table of sequences; only the done flags are written; may be the buffer Slots |
//! | Chosen | u32 `[rows]` | for the host: the token, [`NONE_LEFT`], or [`NOT_FINITE`] |
//!
//! Counts, bias and mask are pools; a request names its entry, no two rows of a launch the same one with counts. An
//! entry's part of a pool is only touched where the request's flags say so. In scratch memory, between the two launches:
//! scores f32 `[rows, vocab]`, maxima u32 `[rows, slices, 2]`, sums f32 `[rows, slices]` ([`SelectSlices::OPERANDS`]).
//!
//! # A row's outcome
//!
//! | row | Chosen | NextTokens | NextPositions | Counts, step | done flag in NextSlots |
//! |---|---|---|---|---|---|
//! | was done | [`NONE_LEFT`] | as Tokens | as Positions | as they were | 1 |
//! | a logit is NaN or +inf | [`NOT_FINITE`] | as Tokens | as Positions | as they were | 1 |
//! | every token is banned | [`NONE_LEFT`] | as Tokens | as Positions | as they were | 1 |
//! | an end token is chosen | the token | the token | position + 1 | one more | 1 |
//! | any other is chosen | the token | the token | position + 1 | one more | 0 |
//!
//! # Against the sampler of the engine
//!
//! Order of the steps, ties (the lower id first), random numbers (Philox4x32-10 of seed and step) and what is never chosen are
//! the same. Greedy choices are exactly the same, and so are the tokens that top_k keeps. Weights exp((logit - largest) /
//! temperature) and their sums are float here and f64 there: where a sum, a share or a random number falls within about
//! 1e-6 of a border, the token on the other side of it may be the one. Two more differences, neither of them reachable with
//! parameters that anyone uses: biases of one id are added up before they meet the logit, and a sum that is infinity less
//! infinity counts as a ban.

#[cfg(feature = "testing")]
pub mod reference;
mod request;
#[cfg(feature = "testing")]
mod scenarios;
mod select_slices;
mod select_token;

pub use request::{END_TOKENS, REQUEST_WORDS, Request, SEEN_IN_PROMPT};
pub use select_slices::SelectSlices;
pub use select_token::SelectToken;

/// In place of a token: the row was done, or no token is left.
pub const NONE_LEFT: u32 = u32::MAX;

/// In place of a token: a logit is NaN or infinite.
pub const NOT_FINITE: u32 = u32::MAX - 1;

/// The most slices of a row, and the most tokens of a slice.
pub const MOST_SLICES: usize = 1024;

/// The largest vocabulary.
pub const MOST_VOCAB: usize = MOST_SLICES * MOST_SLICES;

/// Slices of a vocabulary of at most [`MOST_VOCAB`] tokens: 512 tokens each if that makes no more than [`MOST_SLICES`].
pub fn slices(vocab: usize) -> usize {
    if vocab <= 512 * MOST_SLICES { vocab.div_ceil(512) } else { MOST_SLICES }
}

/// Tokens of a slice: a multiple of 4, so that slices begin at whole vectors. The last slices may hold fewer, or none.
fn slice_len(vocab: usize, slices: usize) -> usize {
    vocab.div_ceil(slices).next_multiple_of(4)
}

/// The sizes of the tests, as (rows, vocab, entries, slices): each vocabulary with every way through the texts, which the number of
/// entries beyond the rows tells.
#[cfg(feature = "testing")]
fn test_sizes() -> Vec<(usize, usize, usize, usize)> {
    let mut all = Vec::new();
    // Slices of 512 tokens and their borders; no whole vectors; slices that hold no token; few tokens; as many slices as tokens of
    // one, so that the best ones weigh something.
    let vocabularies =
        [(3000, 6), (1025, 3), (513, 2), (1024, 2), (511, 1), (100, 5), (10, 5), (4100, 17), (256, 64)];
    for (i, (vocab, slices)) in vocabularies.into_iter().enumerate() {
        // The same rows one at a time, and up to four beside each other.
        let rows = 1 + i % 4;
        for first in (0..scenarios::ways()).step_by(rows) {
            all.push((rows, vocab, rows + first, slices));
        }
    }
    // The first ways at true size.
    all.extend((0..7).map(|first| (1, 248_320, 1 + first, slices(248_320))));
    all
}
