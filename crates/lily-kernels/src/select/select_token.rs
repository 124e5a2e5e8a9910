//! Filters, the draw, and what the next step starts from.

use super::{REQUEST_WORDS, slice_len};
use crate::bindings::select_token;
use crate::{Activation, Contract, Dispatch, Operand, SLOT_WORDS, Traffic};

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
        crate::product(&[4, self.rows, self.vocab])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = select_token::Constants { vectors: self.vocab.is_multiple_of(4) };
        let (vocab, slices, slice_len) = (self.vocab as u32, self.slices as u32, self.slice_len() as u32);
        let params = select_token::Params { vocab, slices, slice_len };
        let grid = [self.rows, 1, 1];
        Some(Dispatch::new(&select_token::TEXT, constants.words(), params.words(), grid, [512, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for SelectToken {
    fn gpu_cases() -> Vec<Self> {
        let sizes = super::test_sizes().into_iter();
        sizes.map(|(rows, vocab, entries, slices)| SelectToken { rows, vocab, entries, slices }).collect()
    }

    /// Its text knows no activations.
    fn takes(&self, activation: Activation) -> bool {
        activation == Activation::Bf16
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::reference::Outcome;
        use super::{NONE_LEFT, NOT_FINITE, scenarios};
        use crate::testing::CaseBuilder;
        let rows = scenarios::rows(self.rows, self.vocab, self.entries, self.entries - self.rows, random);
        let pools = scenarios::Pools::new(&rows, self.vocab, self.entries);
        let (mut maxima, mut sums, mut scores) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            let greedy = row.request.temperature == 0.0;
            scores.extend(row.scores.iter().map(|v| if greedy { f32::NAN } else { *v }));
            for slice in scenarios::slices(row, self.slices, self.slice_len()) {
                maxima.extend([slice.key, slice.id]);
                sums.push(slice.sum as f32);
            }
        }
        let junk = |random: &mut crate::random::Random, n: usize| -> Vec<u32> {
            (0..n).map(|_| random.next_u64() as u32).collect()
        };
        let (tokens, mut slots) = (junk(random, self.rows), junk(random, SLOT_WORDS * self.rows));
        let positions: Vec<u32> = (0..self.rows).map(|_| random.below(1 << 18) as u32).collect();
        let old_slots = junk(random, SLOT_WORDS * self.rows);
        let (mut next_slots, mut next_tokens) = (old_slots.clone(), tokens.clone());
        let (mut next_positions, mut chosen) = (positions.clone(), Vec::new());
        let (mut requests, mut counts) = (pools.requests.clone(), pools.counts.clone());
        for (n, row) in rows.iter().enumerate() {
            slots[n * SLOT_WORDS + 3] = if row.done { 1 + random.below(3) as u32 } else { 0 };
            let done = match row.outcome {
                Outcome::Token(token, _) if !row.done => {
                    next_tokens[n] = token;
                    next_positions[n] += 1;
                    requests[n * REQUEST_WORDS + 10] += 1;
                    if row.request.has_counts {
                        counts[row.request.entry as usize * self.vocab + token as usize] += 1;
                    }
                    chosen.push(token);
                    row.request.end_tokens.contains(&token)
                }
                Outcome::NotFinite if !row.done => {
                    chosen.push(NOT_FINITE);
                    true
                }
                _ => {
                    chosen.push(NONE_LEFT);
                    true
                }
            };
            next_slots[n * SLOT_WORDS + 3] = u32::from(done);
        }
        let case = CaseBuilder::new(*self, activation)
            .ids(&maxima)
            .input(&sums)
            .input(&scores)
            .ids(&positions)
            .ids(&tokens)
            .ids(&slots)
            .update_ids(&pools.requests, &requests)
            .update_ids(&pools.counts, &counts)
            .update_ids(&old_slots, &next_slots)
            .output_ids(&next_tokens)
            .output_ids(&next_positions)
            .output_ids(&chosen);
        // Only a filter that looks at everything touches everything.
        let full = |row: &scenarios::Row| {
            let r = &row.request;
            let all =
                r.top_k > self.vocab && r.min_p > 0.0 && r.has_counts && r.vocabulary as usize == self.vocab;
            all && scenarios::every_slice_counts(row, self.slice_len())
        };
        if rows.iter().all(full) { case.build() } else { case.touches_less().build() }
    }
}

const _: () = assert!(SLOT_WORDS == 4 && REQUEST_WORDS == 32, "msl/slots.h and msl/request.h say so too");
