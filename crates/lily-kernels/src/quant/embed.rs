//! Rows of the embedding.

use crate::bindings::embed;
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

/// `out[r] = dequantized row tokens[r]`.
///
/// Reads `rows` rows of the matrix, wherever they are. Every token id must be below `vocab`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embed {
    /// Tokens.
    pub rows: usize,
    /// Rows of the matrix.
    pub vocab: usize,
    /// Columns of the matrix.
    pub width: usize,
    /// Of the matrix.
    pub format: QuantFormat,
}

impl Embed {
    /// tokens u32 `[rows]`; weight, scales, biases `[vocab, width]`; out f32 `[rows, width]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("tokens").u32(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out"),
    ];

    /// The definition, in f64.
    pub fn reference(&self, tokens: &[u32], weight: &[u8], scales: &[u8], biases: &[u8]) -> Vec<f64> {
        let row = |t: &u32| self.format.dequantize_row(weight, scales, biases, *t as usize, self.width);
        tokens.iter().flat_map(row).collect()
    }

    /// Every format; one row and several.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                for rows in [1, 5] {
                    let format = QuantFormat { bits, group };
                    cases.push(Embed { rows, vocab: 19, width: 3 * group, format });
                }
            }
        }
        cases
    }
}

impl Contract for Embed {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        // Every row a different token.
        let mut all = vec![Traffic::read(4 * self.rows)];
        all.extend(self.format.reads(self.rows.min(self.vocab), self.width));
        all.push(Traffic::written(4 * self.rows * self.width));
        all
    }

    fn flops(&self) -> u64 {
        crate::product(&[2, self.rows, self.width])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = embed::Constants { bits: self.format.bits as u32, group: self.format.group as u32 };
        let params = embed::Params { width: self.width as u32 };
        let threads = (self.width / 16).next_multiple_of(32).min(256);
        let (grid, threads) = ([self.rows, 1, 1], [threads, 1, 1]);
        Some(Dispatch::new(&embed::TEXT, constants.words(), params.words(), grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Embed {
    fn gpu_cases() -> Vec<Self> {
        let case = |(bits, group)| {
            [1, 5].map(|rows| Embed {
                rows,
                vocab: 19,
                width: 3 * group,
                format: QuantFormat { bits, group },
            })
        };
        let mut cases: Vec<Self> = super::testing::FORMATS.into_iter().flat_map(case).collect();
        // More than a run for each thread.
        cases.push(Embed { rows: 2, vocab: 7, width: 4352, format: QuantFormat { bits: 4, group: 64 } });
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder};
        let q = random.quantized(self.vocab, self.width, self.format);
        // All different, so that every row counts.
        let first = random.below(self.vocab);
        let tokens: Vec<u32> = (0..self.rows).map(|r| ((first + 3 * r) % self.vocab) as u32).collect();
        let want = self.reference(&tokens, &q.weight, &q.scales, &q.biases);
        // The product is exact, the sum is rounded.
        let error = want.iter().map(|v| v.abs() * Bounds::new(activation).f32()).collect();
        let builder = CaseBuilder::new(*self, activation).ids(&tokens);
        builder.tensor(&q.weight).tensor(&q.scales).tensor(&q.biases).output(want, error).build()
    }
}
