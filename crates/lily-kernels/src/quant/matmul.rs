//! The product of activations with a quantized matrix.

use super::launch::{Rows, Tiles, output_kind, part_words};
use crate::bindings::{matmul_rows, matmul_tiles};
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

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
    /// Stored as [`Activation::fine`].
    Fine,
}

impl Output {
    /// What a launch moves of `len` outputs.
    pub(crate) fn traffic(self, len: usize, activation: Activation) -> Traffic {
        match self {
            Output::Activation => Traffic::written(activation.bytes() * len),
            Output::F32 => Traffic::written(4 * len),
            Output::Add => Traffic::updated(4 * len),
            Output::Fine => Traffic::written(activation.fine().bytes() * len),
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
        Operand::read("x").fine(),
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
        crate::product(&[2, self.rows, self.outputs(), self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let (outputs, inputs) = (self.outputs(), self.inputs as u32);
        let (bits, group, out) = (self.format.bits as u32, self.format.group as u32, output_kind(self.out));
        let [total, width0, width1, width2] = part_words(self.parts);
        Some(match self.method {
            Method::Rows => {
                assert!(self.rows <= Method::MOST_ROWS, "{self:?}");
                let shape = Rows::of(outputs, 1);
                let constants = matmul_rows::Constants {
                    bits,
                    group,
                    rows: self.rows as u32,
                    outputs: shape.outputs as u32,
                    out,
                };
                let params = matmul_rows::Params { inputs, outputs: total, width0, width1, width2 };
                let grid = [shape.grid(outputs), 1, 1];
                let (constants, params) = (constants.words(), params.words());
                Dispatch::new(&matmul_rows::TEXT, constants, params, grid, shape.threads())
            }
            Method::Tiles => {
                let shape = Tiles::of(self.rows, outputs, 32);
                let constants = matmul_tiles::Constants { bits, group, height: shape.height as u32, out };
                let rows = self.rows as u32;
                let params = matmul_tiles::Params { rows, inputs, outputs: total, width0, width1, width2 };
                let grid = shape.grid(self.rows, outputs);
                let (constants, params) = (constants.words(), params.words());
                Dispatch::new(&matmul_tiles::TEXT, constants, params, grid, shape.threads())
            }
        })
    }
}

#[cfg(feature = "testing")]
impl Matmul {
    /// [`Method::Rows`]: every format; 1 to 4 rows; parts; inputs that fill no step of 512 and several; outputs on both sides of
    /// what a simdgroup takes more of.
    fn rows_cases() -> Vec<Self> {
        let case = |rows, widths: &[usize], inputs, (bits, group), out| Matmul {
            rows,
            parts: Parts::new(widths),
            inputs,
            format: QuantFormat { bits, group },
            out,
            method: Method::Rows,
        };
        let kinds = [Output::Activation, Output::F32, Output::Add, Output::Fine];
        let mut cases = Vec::new();
        for (i, format) in super::testing::FORMATS.into_iter().enumerate() {
            cases.push(case(1 + i % 4, &[7], 3 * format.1, format, kinds[(i + i / 4) % 4]));
            cases.push(case(1 + i % 4, &[3, 2], 640, format, kinds[(i + i / 4) % 4]));
        }
        for format in [(4, 64), (8, 64)] {
            cases.push(case(1, &[64, 32, 4, 4], 2048, format, Output::Fine));
            cases.push(case(2, &[17], 576, format, Output::F32));
            cases.push(case(3, &[40], 1088, format, Output::Add));
            cases.push(case(4, &[9, 24, 1], 4096, format, Output::Activation));
            cases.push(case(4, &[1], 64, format, Output::F32));
        }
        cases.push(case(1, &[2047], 64, (4, 64), Output::Add));
        cases.push(case(2, &[2048, 3], 64, (4, 32), Output::Activation));
        cases.push(case(4, &[4000, 99], 64, (4, 64), Output::F32));
        cases.push(case(1, &[4095], 32, (8, 32), Output::F32));
        cases
    }

    /// [`Method::Tiles`]: every format; rows, outputs on both sides of each height and width of a tile; parts; tiles of which most
    /// is absent.
    fn tiles_cases() -> Vec<Self> {
        let case = |rows, widths: &[usize], inputs, (bits, group), out| Matmul {
            rows,
            parts: Parts::new(widths),
            inputs,
            format: QuantFormat { bits, group },
            out,
            method: Method::Tiles,
        };
        let kinds = [Output::Activation, Output::F32, Output::Add, Output::Fine];
        let mut cases = Vec::new();
        for (i, format) in super::testing::FORMATS.into_iter().enumerate() {
            cases.push(case([3, 19, 40][i % 3], &[37], format.1 * (1 + i % 2), format, kinds[i % 4]));
        }
        for (i, (rows, widths)) in [
            (1, &[1][..]),
            (16, &[32]),
            (17, &[33]),
            (32, &[64, 31, 1, 4]),
            (33, &[128]),
            (64, &[129, 8]),
            (65, &[127]),
            (100, &[200, 3, 60]),
        ]
        .into_iter()
        .enumerate()
        {
            cases.push(case(rows, widths, [96, 32, 160][i % 3], (4, 32), kinds[i % 4]));
        }
        // Heights and widths of many tiles.
        cases.push(case(65, &[4070], 32, (4, 32), Output::Activation));
        cases.push(case(5, &[8200], 32, (8, 32), Output::F32));
        cases.push(case(20, &[4100], 64, (4, 64), Output::Add));
        cases.push(case(4, &[64], 2048, (4, 64), Output::Activation));
        // Whole fours of groups, which texts of NVIDIA GPUs take: parts that are whole eights and parts that are not.
        for (i, (rows, widths)) in
            [(1, &[8][..]), (31, &[64, 16, 8, 8]), (33, &[129]), (65, &[120, 3, 5]), (130, &[264])]
                .into_iter()
                .enumerate()
        {
            cases.push(case(rows, widths, 512, [(4, 64), (8, 64)][i % 2], kinds[i % 4]));
            cases.push(case(rows, widths, 256, [(4, 64), (8, 64)][i / 2 % 2], kinds[(i + 1) % 4]));
        }
        cases
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Matmul {
    fn gpu_cases() -> Vec<Self> {
        let mut cases = Matmul::rows_cases();
        cases.extend(Matmul::tiles_cases());
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::Product;
        use crate::testing::{Bounds, CaseBuilder, Matrix, wide};
        let builder = CaseBuilder::new(*self, activation);
        let x = builder.rounded(&random.values(self.rows * self.inputs, 1.0));
        let matrix = Matrix::random(random, self.outputs(), self.inputs, self.format);
        let product = Product::new(self.out, activation, self.rows * self.outputs(), random);
        let (weight, scales, biases) = matrix.tensors();
        let want = self.reference(&wide(&x), weight, scales, biases, &product.before());
        let mut product = product.want(want);
        for (r, x) in wide(&x).chunks(self.inputs).enumerate() {
            for o in 0..self.outputs() {
                let error = matrix.error(Bounds::new(activation), self.method, o, x);
                product.error(self.parts.place(self.rows, r, o), error);
            }
        }
        let builder = builder.input(&x).tensor(weight).tensor(scales).tensor(biases);
        product.finish(builder).build()
    }
}
