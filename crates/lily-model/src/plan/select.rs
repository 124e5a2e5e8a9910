//! The launches that choose the next tokens and hand them to the next step.

use lily_kernels::SLOT_WORDS;
use lily_kernels::select::{REQUEST_WORDS, SelectSlices, SelectToken, slices};

use super::build::Builder;
use super::{Buffer, View};

impl Builder<'_> {
    /// From the logits of each row to the input of the next step. Counts, biases and masks are pools of `entries`.
    pub(super) fn select(&mut self, logits: &View, entries: usize) {
        let (rows, vocab) = (self.total, self.geometry.vocab);
        let slices = slices(vocab);
        let whole = |buffer, words: usize| View { buffer, bytes: 0..4 * words };
        let requests = whole(Buffer::Requests, rows * REQUEST_WORDS);
        let counts = whole(Buffer::Counts, entries * vocab);
        let scores = self.arena.words(rows * vocab);
        let maxima = self.arena.words(2 * rows * slices);
        let sums = self.arena.words(rows * slices);
        let bindings = vec![
            logits.clone(),
            requests.clone(),
            counts.clone(),
            whole(Buffer::Bias, entries * vocab),
            whole(Buffer::Mask, entries * vocab.div_ceil(32)),
            scores.clone(),
            maxima.clone(),
            sums.clone(),
        ];
        self.launch("select_slices", SelectSlices { rows, vocab, entries, slices }, bindings);
        let bindings = vec![
            maxima,
            sums,
            scores,
            self.per_row(Buffer::Positions),
            self.per_row(Buffer::Tokens),
            whole(Buffer::Slots, rows * SLOT_WORDS),
            requests,
            counts,
            whole(Buffer::NextSlots, rows * SLOT_WORDS),
            self.per_row(Buffer::NextTokens),
            self.per_row(Buffer::NextPositions),
            self.per_row(Buffer::Chosen),
        ];
        self.launch("select_token", SelectToken { rows, vocab, entries, slices }, bindings);
    }
}
