//! The norm and gate after Gated DeltaNet, and the product behind them, in one launch.

use super::launch::Rows;
use super::{Matmul, Method, Output, Parts, Quantized};
use crate::bindings::gated_norm_matmul;
use crate::norm::GatedNorm;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] += sum over i of g[r, i] * w[o, i]` with `g[r, h] = RMSNorm(y[r, h]; norm) * SiLU(z[r, h])` for each head h, of
/// at most [`Method::MOST_ROWS`] rows; on GPUs only.
///
/// Every threadgroup computes the norms of its rows again. At most 256 heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNormMatmul {
    /// Rows.
    pub rows: usize,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the matrix.
    pub format: QuantFormat,
}

impl GatedNormMatmul {
    /// The most heads: factors of four rows of them are in threadgroup memory.
    pub const MOST_HEADS: usize = 256;

    /// y, z activations `[rows, heads, width]`; norm `[width]`; weight, scales, biases `[outputs, heads * width]`; out f32
    /// `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("y").fine(),
        Operand::read("z").fine(),
        Operand::read("norm").tensor(),
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::update("out"),
    ];

    /// Heads that fill a vector and heads that do not; 1 to 4 rows.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for (bits, group) in [(4, 64), (8, 64), (5, 32)] {
            let format = QuantFormat { bits, group };
            for (rows, outputs, heads, width, eps) in
                [(1, 64, 4, 128, 1e-6), (2, 19, 2, 64, 0.2), (3, 8, 32, 18, 1e-6), (4, 33, 4, 128, 1e-6)]
            {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(GatedNormMatmul { rows, outputs, heads, width, eps, norm, format });
            }
        }
        cases
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.heads * self.width
    }

    /// The definition, in f64; `out` is what was there before.
    pub fn reference(
        &self,
        y: &[f64],
        z: &[f64],
        norm: &[f64],
        (weight, scales, biases): Quantized<'_>,
        out: &[f64],
    ) -> Vec<f64> {
        self.product().reference(&self.normed().reference(y, z, norm), weight, scales, biases, out)
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> GatedNorm {
        let &GatedNormMatmul { rows, heads, width, eps, norm, .. } = self;
        GatedNorm { rows, heads, width, eps, weight: norm }
    }

    /// The product alone.
    pub(crate) fn product(&self) -> Matmul {
        let &GatedNormMatmul { rows, outputs, format, .. } = self;
        let (parts, inputs) = (Parts::one(outputs), self.inputs());
        Matmul { rows, parts, inputs, format, out: Output::Add, method: Method::Rows }
    }
}

impl Contract for GatedNormMatmul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all = self.normed().traffic(activation);
        all.truncate(3);
        all.extend(self.product().traffic(activation).split_off(1));
        all
    }

    fn flops(&self) -> u64 {
        self.normed().flops() + self.product().flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        assert!(self.rows <= Method::MOST_ROWS, "{self:?}");
        if self.heads > Self::MOST_HEADS {
            return None;
        }
        // Eight simdgroups share the norms.
        let shape = Rows { simdgroups: 8, ..Rows::of(self.outputs, 1) };
        let constants = gated_norm_matmul::Constants {
            bits: self.format.bits as u32,
            group: self.format.group as u32,
            rows: self.rows as u32,
            outputs: shape.outputs as u32,
            norm_is_f32: self.norm == PlainType::F32,
        };
        let params = gated_norm_matmul::Params {
            outputs: self.outputs as u32,
            heads: self.heads as u32,
            width: self.width as u32,
            eps: self.eps,
        };
        let grid = [shape.grid(self.outputs), 1, 1];
        let (constants, params) = (constants.words(), params.words());
        Some(Dispatch::new(&gated_norm_matmul::TEXT, constants, params, grid, shape.threads()))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GatedNormMatmul {
    fn gpu_cases() -> Vec<Self> {
        GatedNormMatmul::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::Product;
        use crate::testing::{Bounds, CaseBuilder, Matrix, magnitude, plain, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        let y = builder.rounded(&random.values(self.rows * self.inputs(), 0.5));
        let builder = builder.input(&y);
        let z = builder.rounded(&random.values(self.rows * self.inputs(), 3.0));
        let (norm, norm_values) = plain(random, self.norm, self.width, 1.0, 0.5);
        let matrix = Matrix::random(random, self.outputs, self.inputs(), self.format);
        let product = Product::new(Output::Add, activation, self.rows * self.outputs, random);
        let (wide_y, wide_z) = (wide(&y), wide(&z));
        let want = self.reference(&wide_y, &wide_z, &norm_values, matrix.tensors(), &product.before());
        let mut product = product.want(want);
        // Of each gated value, before the product.
        let relative = b.norm(self.width) + 3.0 * b.f32() + b.silu();
        for (r, x) in
            self.normed().reference(&wide_y, &wide_z, &norm_values).chunks(self.inputs()).enumerate()
        {
            for o in 0..self.outputs {
                let error = matrix.error(b, Method::Rows, o, x) + relative * magnitude(x, matrix.terms(o));
                product.error(r * self.outputs + o, error);
            }
        }
        let (weight, scales, biases) = matrix.tensors();
        let builder = builder.input(&z).tensor(&norm);
        product.finish(builder.tensor(weight).tensor(scales).tensor(biases)).build()
    }
}
