//! Filters, the draw, and what the next step starts from.

use super::{REQUEST_WORDS, slice_len};
use crate::{Activation, Contract, Operand, SLOT_WORDS, Traffic};

/// Chooses each row's token from the slices of [`super::SelectSlices`], and writes what [the module](super) says; on GPUs
/// only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectToken {
    /// Rows, one request and one sequence each.
    pub rows: usize,
    /// Logits of a row, with padding; at most 2^20.
    pub vocab: usize,
    /// Of the pool of counts.
    pub entries: usize,
    /// Of a row, as in [`super::SelectSlices`].
    pub slices: usize,
}

impl SelectToken {
    /// maxima u32 `[rows, slices, 2]`; sums f32 `[rows, slices]`; scores f32 `[rows, vocab]`; positions and tokens u32
    /// `[rows]`; slots_now u32 `[rows, SLOT_WORDS]`; requests u32 `[rows, REQUEST_WORDS]`; counts u32 `[entries, vocab]`;
    /// next_slots u32 `[rows, SLOT_WORDS]`; next_tokens, next_positions and chosen u32 `[rows]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("maxima").u32(),
        Operand::read("sums"),
        Operand::read("scores"),
        Operand::read("positions").u32(),
        Operand::read("tokens").u32(),
        Operand::read("slots_now").u32(),
        Operand::update("requests").u32(),
        Operand::update("counts").u32(),
        Operand::update("next_slots").u32(),
        Operand::write("next_tokens").u32(),
        Operand::write("next_positions").u32(),
        Operand::write("chosen").u32(),
    ];

    /// The launches of the tests.
    pub fn cases() -> Vec<Self> {
        let slices = super::slices;
        [(1, 512), (2, 1000), (4, 513), (1, 248_320)]
            .map(|(rows, vocab)| SelectToken { rows, vocab, entries: rows, slices: slices(vocab) })
            .to_vec()
    }

    /// Tokens of a slice; the last slices may hold fewer, or none.
    pub fn slice_len(&self) -> usize {
        slice_len(self.vocab, self.slices)
    }
}

impl Contract for SelectToken {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        let words = 4 * self.rows;
        vec![
            Traffic::read(2 * words * self.slices),
            Traffic::read(words * self.slices),
            Traffic::read(words * self.vocab),
            Traffic::read(words),
            Traffic::read(words),
            Traffic::read(words),
            Traffic { read: (words * 27) as u64, written: words as u64 },
            Traffic::updated(words),
            Traffic::written(words),
            Traffic::written(words),
            Traffic::written(words),
            Traffic::written(words),
        ]
    }

    fn flops(&self) -> u64 {
        4 * (self.rows * self.vocab) as u64
    }
}

const _: () = assert!(SLOT_WORDS == 4 && REQUEST_WORDS == 32, "msl/slots.h and msl/request.h say so too");
