//! The product of activations with a quantized matrix.

use crate::{Activation, Contract, Operand, QuantFormat, Traffic};

/// Widths of the matrices that were put one below the other into one. The product of part i is stored apart, `[rows, width
/// of i]`, part after part: what reads it need not know of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    widths: [usize; Parts::MOST],
}

impl Parts {
    /// The most parts of a matrix.
    pub const MOST: usize = 4;

    /// A matrix that is not put together.
    pub fn one(width: usize) -> Self {
        Parts { widths: [width, 0, 0, 0] }
    }

    /// At most [`Parts::MOST`] widths, none of them 0.
    ///
    /// # Panics
    /// On more.
    pub fn new(widths: &[usize]) -> Self {
        let mut all = [0; Parts::MOST];
        all[..widths.len()].copy_from_slice(widths);
        Parts { widths: all }
    }

    /// The widths; 0 for parts that are not there.
    pub fn widths(self) -> [usize; Parts::MOST] {
        self.widths
    }

    /// Outputs in all.
    pub fn total(self) -> usize {
        self.widths.iter().sum()
    }

    /// How many.
    pub fn count(self) -> usize {
        self.widths.iter().filter(|w| **w > 0).count()
    }

    /// Where output `o` of row `r` of `rows` is stored.
    pub fn place(self, rows: usize, r: usize, o: usize) -> usize {
        let mut start = 0;
        for width in self.widths {
            if o < start + width {
                return rows * start + r * width + o - start;
            }
            start += width;
        }
        panic!("output {o} of {}", self.total())
    }
}

/// Where a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Stored as activations.
    Activation,
    /// Stored as f32: gates, logits.
    F32,
    /// Added to f32: the residual stream.
    Add,
}

impl Output {
    /// What a launch moves of `len` outputs.
    pub(crate) fn traffic(self, len: usize, activation: Activation) -> Traffic {
        match self {
            Output::Activation => Traffic::written(activation.bytes() * len),
            Output::F32 => Traffic::written(4 * len),
            Output::Add => Traffic::updated(4 * len),
        }
    }
}

/// How a GPU computes a product; the CPU device has one way for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A simdgroup for some outputs of at most [`Method::MOST_ROWS`] rows: each weight is read once.
    Rows,
    /// Matrix tiles.
    Tiles,
}

impl Method {
    /// Rows that [`Method::Rows`] takes.
    pub const MOST_ROWS: usize = 4;
}

/// `out[r, o] = sum over i of x[r, i] * w[o, i]`, stored or added as `out` says.
///
/// A row's result does not depend on how many rows run beside it: each output is summed over its inputs in one order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of x.
    pub rows: usize,
    /// Rows of the matrix, in parts.
    pub parts: Parts,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Of the matrix.
    pub format: QuantFormat,
    /// Where the product goes.
    pub out: Output,
    /// How a GPU computes it.
    pub method: Method,
}

impl Matmul {
    /// x activations `[rows, inputs]`; weight, scales, biases `[outputs, inputs]`; out activations or f32, `[rows, width]` of each
    /// part.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::update("out").act(),
    ];

    /// A product with one matrix.
    pub fn new(rows: usize, outputs: usize, inputs: usize, format: QuantFormat, out: Output) -> Self {
        Matmul { rows, parts: Parts::one(outputs), inputs, format, out, method: Method::Tiles }
    }

    /// Outputs of all parts.
    pub fn outputs(&self) -> usize {
        self.parts.total()
    }

    /// The definition, in f64; `out` is what was there before.
    pub fn reference(&self, x: &[f64], weight: &[u8], scales: &[u8], biases: &[u8], out: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; self.rows * self.outputs()];
        for o in 0..self.outputs() {
            let w = self.format.dequantize_row(weight, scales, biases, o, self.inputs);
            for r in 0..self.rows {
                let dot: f64 = x[r * self.inputs..][..self.inputs].iter().zip(&w).map(|(a, b)| a * b).sum();
                let place = self.parts.place(self.rows, r, o);
                y[place] = if self.out == Output::Add { out[place] + dot } else { dot };
            }
        }
        y
    }

    /// Every format, rows on both sides of a register tile, outputs that fill no tile; for the most used formats, rows on
    /// both sides of a panel of 48, outputs that split unevenly, and long sums.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                for (rows, outputs, groups) in
                    [(1, 1, 1), (1, 37, 3), (2, 8, 2), (5, 9, 1), (6, 4, 2), (13, 21, 3)]
                {
                    let format = QuantFormat { bits, group };
                    let out = if rows == 6 { Output::Add } else { Output::Activation };
                    cases.push(Matmul::new(rows, outputs, groups * group, format, out));
                }
            }
        }
        for (bits, group) in [(4, 64), (8, 64), (3, 32)] {
            let format = QuantFormat { bits, group };
            for (rows, outputs, inputs) in
                [(47, 7, 128), (48, 33, 64), (49, 16, 64), (97, 17, 128), (1, 100, 2048), (3, 130, 192)]
            {
                let out = if rows == 49 { Output::Add } else { Output::F32 };
                cases.push(Matmul::new(rows, outputs, inputs, format, out));
            }
        }
        cases
    }
}

impl Contract for Matmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all = vec![Traffic::read(activation.bytes() * self.rows * self.inputs)];
        all.extend(self.format.reads(self.outputs(), self.inputs));
        all.push(self.out.traffic(self.rows * self.outputs(), activation));
        all
    }

    fn flops(&self) -> u64 {
        2 * (self.rows * self.outputs() * self.inputs) as u64
    }
}
