//! Adjusted logits, and what the choice needs of each slice of the vocabulary.

use super::slice_len;
use crate::bindings::select_slices;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// For each row and slice: `scores = finite(finite((finite(logit + bias)) * penalty) - presence - frequency * count)`, -inf
/// where the mask forbids, with the penalties of the row's request; padding is -inf. On GPUs only.
///
/// `maxima` holds the largest score as an unsigned key (a larger float has the larger key; both zeros have one) and its
/// lowest id; `sums` the sum of exp((score - largest) / temperature), or -1 if a logit is NaN or +inf. Where the temperature
/// is 0, nobody reads scores and sums: scores stay as they are, sums are 0 or -1. A slice without tokens is one of banned
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectSlices {
    /// Rows, one request each.
    pub rows: usize,
    /// Logits of a row, with padding; at most 2^20.
    pub vocab: usize,
    /// Of the pools of counts, bias and mask.
    pub entries: usize,
    /// Of a row: [`super::slices`], or any number up to [`super::MOST_SLICES`] for which no slice has more tokens than that.
    pub slices: usize,
}

impl SelectSlices {
    /// logits f32 `[rows, vocab]`; requests u32 `[rows, REQUEST_WORDS]`; counts u32 `[entries, vocab]`; bias f32
    /// `[entries, vocab]`; mask u32 `[entries, ceil(vocab / 32)]`; scores f32 `[rows, vocab]`; maxima u32
    /// `[rows, slices, 2]`; sums f32 `[rows, slices]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("logits"),
        Operand::read("requests").u32(),
        Operand::read("counts").u32(),
        Operand::read("bias"),
        Operand::read("mask").u32(),
        Operand::write("scores"),
        Operand::write("maxima").u32(),
        Operand::write("sums"),
    ];

    /// The launches of the tests.
    pub fn cases() -> Vec<Self> {
        let slices = super::slices;
        [(1, 512), (2, 1000), (4, 513), (1, 248_320)]
            .map(|(rows, vocab)| SelectSlices { rows, vocab, entries: rows, slices: slices(vocab) })
            .to_vec()
    }

    /// Tokens of a slice; the last slices may hold fewer, or none.
    pub fn slice_len(&self) -> usize {
        slice_len(self.vocab, self.slices)
    }
}

impl Contract for SelectSlices {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        let (logits, entries) = (4 * self.rows * self.vocab, self.rows.min(self.entries));
        vec![
            Traffic::read(logits),
            Traffic::read(4 * self.rows * 8),
            Traffic::read(4 * entries * self.vocab),
            Traffic::read(4 * entries * self.vocab),
            Traffic::read(4 * entries * self.vocab.div_ceil(32)),
            Traffic::written(logits),
            Traffic::written(8 * self.rows * self.slices),
            Traffic::written(4 * self.rows * self.slices),
        ]
    }

    fn flops(&self) -> u64 {
        crate::product(&[8, self.rows, self.vocab])
    }
    fn dispatch(&self) -> Option<Dispatch> {
        let constants = select_slices::Constants { vectors: self.vocab.is_multiple_of(4) };
        let (vocab, slices, slice_len) = (self.vocab as u32, self.slices as u32, self.slice_len());
        let params = select_slices::Params { vocab, slices, slice_len: slice_len as u32 };
        let (grid, threads) =
            ([self.slices, self.rows, 1], [slice_len.div_ceil(4).next_multiple_of(32), 1, 1]);
        Some(Dispatch::new(&select_slices::TEXT, constants.words(), params.words(), grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for SelectSlices {
    fn gpu_cases() -> Vec<Self> {
        let sizes = super::test_sizes().into_iter();
        sizes.map(|(rows, vocab, entries, slices)| SelectSlices { rows, vocab, entries, slices }).collect()
    }

    /// Its text knows no activations.
    fn takes(&self, activation: Activation) -> bool {
        activation == Activation::Bf16
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::scenarios;
        use crate::testing::{Bounds, CaseBuilder};
        let bounds = Bounds::new(activation);
        let rows = scenarios::rows(self.rows, self.vocab, self.entries, self.entries - self.rows, random);
        let pools = scenarios::Pools::new(&rows, self.vocab, self.entries);
        let (mut scores, mut maxima) = (Vec::new(), Vec::new());
        let (mut sums, mut errors) = (Vec::new(), Vec::new());
        for row in &rows {
            let greedy = row.request.temperature == 0.0;
            scores.extend(row.scores.iter().map(|v| if greedy { f64::NAN } else { f64::from(*v) }));
            for slice in scenarios::slices(row, self.slices, self.slice_len()) {
                maxima.extend([slice.key, slice.id]);
                sums.push(slice.sum);
                // Three roundings of an exponent, the function, and the sum.
                let exponents = slice.sum_of_exponents * 3.0 * bounds.f32();
                errors.push(exponents + slice.sum * (bounds.function() + bounds.sum(self.slice_len(), 32)));
            }
        }
        let full = |row: &scenarios::Row| {
            let r = &row.request;
            r.has_counts
                && r.has_bias
                && r.has_mask
                && r.temperature > 0.0
                && r.vocabulary as usize == self.vocab
        };
        let errors_of_scores = vec![0.0; scores.len()];
        let case = CaseBuilder::new(*self, activation)
            .input(&pools.logits)
            .ids(&pools.requests)
            .ids(&pools.counts)
            .input(&pools.bias)
            .ids(&pools.mask)
            .output(scores, errors_of_scores)
            .output_ids(&maxima)
            .output(sums, errors);
        if rows.iter().all(full) { case.build() } else { case.touches_less().build() }
    }
}
