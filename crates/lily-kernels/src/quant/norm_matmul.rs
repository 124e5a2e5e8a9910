//! A norm and the product behind it, in one launch.

use super::launch::{Rows, output_kind, part_words};
use super::{Matmul, Method, Output, Parts, Quantized};
use crate::bindings::norm_matmul;
use crate::norm::RmsNorm;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] = sum over i of RMSNorm(x[r])[i] * w[o, i]`, stored or added as `out` says, of at most [`Method::MOST_ROWS`]
/// rows; on GPUs only.
///
/// The norm costs less than a launch of its own: every threadgroup computes the root mean square of its rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormMatmul {
    /// Rows of x.
    pub rows: usize,
    /// Rows of the matrix, in parts.
    pub parts: Parts,
    /// Columns of the matrix, and width of the norm.
    pub inputs: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the matrix.
    pub format: QuantFormat,
    /// Where the product goes.
    pub out: Output,
}

impl NormMatmul {
    /// x f32 `[rows, inputs]`; norm `[inputs]`; weight, scales, biases `[outputs, inputs]`; out activations or f32,
    /// `[rows, width]` of each part.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("norm").tensor(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::update("out").act(),
    ];

    /// 1 to 4 rows, parts, every place where a product goes; both formats with fast paths and one without.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for (bits, group, inputs) in [(4, 64, 256), (8, 64, 128), (3, 32, 96), (4, 64, 2048)] {
            let format = QuantFormat { bits, group };
            for (rows, parts, out) in [
                (1, Parts::new(&[64, 32, 4, 4]), Output::Fine),
                (3, Parts::new(&[16, 4, 4]), Output::Activation),
                (2, Parts::one(17), Output::F32),
                (4, Parts::new(&[9, 24]), Output::Add),
            ] {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(NormMatmul { rows, parts, inputs, eps: 1e-6, norm, format, out });
            }
        }
        cases
    }

    /// Outputs of all parts.
    pub fn outputs(&self) -> usize {
        self.parts.total()
    }

    /// The definition, in f64; `out` is what was there before.
    pub fn reference(
        &self,
        x: &[f64],
        norm: &[f64],
        (weight, scales, biases): Quantized<'_>,
        out: &[f64],
    ) -> Vec<f64> {
        self.product().reference(&self.normed().reference(x, norm), weight, scales, biases, out)
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> RmsNorm {
        RmsNorm { rows: self.rows, width: self.inputs, eps: self.eps, weight: self.norm }
    }

    /// The product alone.
    pub(crate) fn product(&self) -> Matmul {
        let &NormMatmul { rows, parts, inputs, format, out, .. } = self;
        Matmul { rows, parts, inputs, format, out, method: Method::Rows }
    }
}

impl Contract for NormMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all =
            vec![Traffic::read(4 * self.rows * self.inputs), Traffic::read(self.inputs * self.norm.bytes())];
        all.extend(self.product().traffic(activation).split_off(1));
        all
    }

    fn flops(&self) -> u64 {
        self.normed().flops() + self.product().flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        assert!(self.rows <= Method::MOST_ROWS, "{self:?}");
        let shape = Rows::of(self.outputs(), 1);
        let [outputs, width0, width1, width2] = part_words(self.parts);
        let constants = norm_matmul::Constants {
            bits: self.format.bits as u32,
            group: self.format.group as u32,
            rows: self.rows as u32,
            outputs: shape.outputs as u32,
            out: output_kind(self.out),
            norm_is_f32: self.norm == PlainType::F32,
        };
        let (inputs, eps) = (self.inputs as u32, self.eps);
        let params = norm_matmul::Params { inputs, outputs, width0, width1, width2, eps };
        let grid = [shape.grid(self.outputs()), 1, 1];
        Some(Dispatch::new(&norm_matmul::TEXT, constants.words(), params.words(), grid, shape.threads()))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for NormMatmul {
    fn gpu_cases() -> Vec<Self> {
        NormMatmul::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Product, normed_product_error};
        use crate::testing::{Bounds, CaseBuilder, Matrix, plain, wide};
        let b = Bounds::new(activation);
        let x = random.values(self.rows * self.inputs, 2.0);
        let (norm, norm_values) = plain(random, self.norm, self.inputs, 1.0, 0.5);
        let matrix = Matrix::random(random, self.outputs(), self.inputs, self.format);
        let product = Product::new(self.out, activation, self.rows * self.outputs(), random);
        let want = self.reference(&wide(&x), &norm_values, matrix.tensors(), &product.before());
        let mut product = product.want(want);
        let normed = self.normed().reference(&wide(&x), &norm_values);
        for (r, x) in normed.chunks(self.inputs).enumerate() {
            for o in 0..self.outputs() {
                product.error(self.parts.place(self.rows, r, o), normed_product_error(b, &matrix, o, x));
            }
        }
        let (weight, scales, biases) = matrix.tensors();
        let builder = CaseBuilder::new(*self, activation).input(&x).tensor(&norm);
        product.finish(builder.tensor(weight).tensor(scales).tensor(biases)).build()
    }
}
