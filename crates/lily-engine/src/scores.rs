//! Log probabilities of a prompt's own tokens, for requests that ask for them.
//!
//! Such a prompt is computed as a whole, since a reused state has no logits, and in short pieces, since each of its rows has logits
//! as wide as the vocabulary. It takes part in no reuse: its pieces end elsewhere than at cuts.

use lily_protocol::Logprobs;

use crate::sampler::{SamplerError, Scratch, logprobs, sound};

/// Tokens of a piece, if the device takes so many: 32 MB of logits with a vocabulary of 250,000.
const PIECE: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Scores {
    /// Alternatives of each token.
    alternatives: usize,
    /// Tokens of a piece.
    piece: usize,
    /// Of the first tokens of the prompt, one after the other.
    known: Vec<Option<Logprobs>>,
}

impl Scores {
    /// `most`: tokens of the device's own pieces.
    pub(crate) fn new(alternatives: usize, most: usize) -> Self {
        Scores { alternatives, piece: PIECE.min(most), known: vec![None] }
    }

    /// Tokens that are computed together.
    pub(crate) fn piece(&self) -> usize {
        self.piece
    }

    /// Takes the logits of the row behind `prompt[at]`: what they say of the token after it. Nothing new where the prompt ends, or
    /// where a request that lost its sequence repeats its work.
    pub(crate) fn take(
        &mut self,
        prompt: &[u32],
        at: usize,
        logits: &[f32],
        vocabulary: usize,
        scratch: &mut Scratch,
    ) -> Result<(), SamplerError> {
        let Some(&next) = prompt.get(at + 1).filter(|_| self.known.len() == at + 1) else { return Ok(()) };
        let logits = sound(logits, vocabulary)?;
        self.known.push(Some(logprobs(logits, vocabulary, next, self.alternatives, scratch)));
        Ok(())
    }

    /// All of them.
    pub(crate) fn known(self) -> Vec<Option<Logprobs>> {
        self.known
    }
}
