//! A norm and the first half of a gated feed-forward block behind it, in one launch.

use super::launch::Rows;
use super::{Method, Quantized, Swiglu};
use crate::bindings::norm_swiglu;
use crate::norm::RmsNorm;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, QuantFormat, Traffic};

/// `out[r, o] = SiLU(gate_o . n_r) * (up_o . n_r)` with `n_r = RMSNorm(x[r]; norm)`, of at most [`Method::MOST_ROWS`] rows; on
/// GPUs only.
///
/// Every threadgroup computes the root mean square of its rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSwiglu {
    /// Rows of x.
    pub rows: usize,
    /// Rows of each matrix.
    pub outputs: usize,
    /// Columns of each matrix, and width of the norm.
    pub inputs: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How the norm's weight is stored.
    pub norm: PlainType,
    /// Of the gate matrix.
    pub gate: QuantFormat,
    /// Of the up matrix.
    pub up: QuantFormat,
}

impl NormSwiglu {
    /// x f32 `[rows, inputs]`; norm `[inputs]`; gate and up `[outputs, inputs]`; out activations `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x"),
        Operand::read("norm").tensor(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// Equal and unequal formats of the two matrices; 1 to 4 rows.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in [(f(4, 64), f(4, 64)), (f(8, 64), f(4, 32)), (f(3, 32), f(6, 128))] {
            for (rows, outputs, inputs) in [(1, 64, 256), (2, 7, 128), (4, 33, 2048), (3, 1025, 128)] {
                let norm = if rows == 2 { PlainType::F32 } else { PlainType::Bf16 };
                cases.push(NormSwiglu { rows, outputs, inputs, eps: 1e-6, norm, gate, up });
            }
        }
        cases
    }

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], norm: &[f64], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        self.product().reference(&self.normed().reference(x, norm), gate, up)
    }

    /// The norm alone.
    pub(crate) fn normed(&self) -> RmsNorm {
        RmsNorm { rows: self.rows, width: self.inputs, eps: self.eps, weight: self.norm }
    }

    /// What follows the norm.
    pub(crate) fn product(&self) -> Swiglu {
        let &NormSwiglu { rows, outputs, inputs, gate, up, .. } = self;
        Swiglu { rows, outputs, inputs, gate, up, method: Method::Rows }
    }
}

impl Contract for NormSwiglu {
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
        let shape = Rows::of(self.outputs, 2);
        let constants = norm_swiglu::Constants {
            gate_bits: self.gate.bits as u32,
            gate_group: self.gate.group as u32,
            up_bits: self.up.bits as u32,
            up_group: self.up.group as u32,
            rows: self.rows as u32,
            outputs: shape.outputs as u32,
            norm_is_f32: self.norm == PlainType::F32,
        };
        let (inputs, outputs) = (self.inputs as u32, self.outputs as u32);
        let params = norm_swiglu::Params { inputs, outputs, eps: self.eps };
        let grid = [shape.grid(self.outputs), 1, 1];
        Some(Dispatch::new(&norm_swiglu::TEXT, constants.words(), params.words(), grid, shape.threads()))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for NormSwiglu {
    fn gpu_cases() -> Vec<Self> {
        NormSwiglu::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{normed_product_error, swiglu};
        use crate::testing::{Bounds, CaseBuilder, Matrix, plain, wide};
        let b = Bounds::new(activation);
        let x = random.values(self.rows * self.inputs, 4.0);
        let (norm, norm_values) = plain(random, self.norm, self.inputs, 2.0, 1.0);
        let gate = Matrix::random(random, self.outputs, self.inputs, self.gate);
        let up = Matrix::random(random, self.outputs, self.inputs, self.up);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for x in self.normed().reference(&wide(&x), &norm_values).chunks(self.inputs) {
            for o in 0..self.outputs {
                let product = |m: &Matrix| (m.product(o, x), normed_product_error(b, m, o, x));
                let (value, off) = swiglu(b, product(&gate), product(&up));
                want.push(value);
                error.push(off);
            }
        }
        let mut builder = CaseBuilder::new(*self, activation).input(&x).tensor(&norm);
        for matrix in [gate, up] {
            let (weight, scales, biases) = matrix.tensors();
            builder = builder.tensor(weight).tensor(scales).tensor(biases);
        }
        builder.output(want, error).build()
    }
}
