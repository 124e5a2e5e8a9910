//! Rows of the embedding.

use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

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
        2 * (self.rows * self.width) as u64
    }
}
