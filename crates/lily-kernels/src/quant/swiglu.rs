//! The first half of a gated feed-forward block.

use super::Method;
use super::launch::{Rows, Tiles};
use crate::bindings::{swiglu_rows, swiglu_tiles};
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

/// `out[r, o] = SiLU(gate_o . x_r) * (up_o . x_r)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swiglu {
    /// Rows of x.
    pub rows: usize,
    /// Rows of each matrix.
    pub outputs: usize,
    /// Columns of each matrix.
    pub inputs: usize,
    /// Of the gate matrix.
    pub gate: QuantFormat,
    /// Of the up matrix.
    pub up: QuantFormat,
    /// How a GPU computes it.
    pub method: Method,
}

/// x * sigmoid(x).
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// sigmoid(x).
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Bytes of the three tensors of a quantized matrix: weight, scales, biases.
pub type Quantized<'a> = (&'a [u8], &'a [u8], &'a [u8]);

impl Swiglu {
    /// x activations `[rows, inputs]`; gate and up `[outputs, inputs]`; out activations `[rows, outputs]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").fine(),
        Operand::read("gate.weight").tensor(),
        Operand::read("gate.scales").tensor(),
        Operand::read("gate.biases").tensor(),
        Operand::read("up.weight").tensor(),
        Operand::read("up.scales").tensor(),
        Operand::read("up.biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], gate: Quantized<'_>, up: Quantized<'_>) -> Vec<f64> {
        let mut y = vec![0.0; self.rows * self.outputs];
        for o in 0..self.outputs {
            let g = self.gate.dequantize_row(gate.0, gate.1, gate.2, o, self.inputs);
            let u = self.up.dequantize_row(up.0, up.1, up.2, o, self.inputs);
            for r in 0..self.rows {
                let x = &x[r * self.inputs..][..self.inputs];
                let dot = |w: &[f64]| x.iter().zip(w).map(|(a, b)| a * b).sum::<f64>();
                y[r * self.outputs + o] = silu(dot(&g)) * dot(&u);
            }
        }
        y
    }

    /// Equal and unequal formats of the two matrices; rows on both sides of a panel of 48.
    pub fn cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let mut cases = Vec::new();
        for (gate, up) in
            [(f(4, 64), f(4, 64)), (f(4, 32), f(6, 64)), (f(8, 128), f(3, 32)), (f(2, 64), f(5, 128))]
        {
            for (rows, outputs) in [(1, 5), (4, 33), (11, 7), (48, 17), (50, 9)] {
                cases.push(Swiglu { rows, outputs, inputs: 256, gate, up, method: Method::Tiles });
            }
        }
        cases
    }
}

impl Contract for Swiglu {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let size = activation.bytes();
        let mut all = vec![Traffic::read(size * self.rows * self.inputs)];
        all.extend(self.gate.reads(self.outputs, self.inputs));
        all.extend(self.up.reads(self.outputs, self.inputs));
        all.push(Traffic::written(size * self.rows * self.outputs));
        all
    }

    fn flops(&self) -> u64 {
        crate::product(&[4, self.rows, self.outputs, self.inputs])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let (rows, inputs, outputs) = (self.rows as u32, self.inputs as u32, self.outputs as u32);
        let (gate_bits, gate_group) = (self.gate.bits as u32, self.gate.group as u32);
        let (up_bits, up_group) = (self.up.bits as u32, self.up.group as u32);
        Some(match self.method {
            Method::Rows => {
                assert!(self.rows <= Method::MOST_ROWS, "{self:?}");
                let shape = Rows::of(self.outputs, 2);
                let constants = swiglu_rows::Constants {
                    gate_bits,
                    gate_group,
                    up_bits,
                    up_group,
                    rows,
                    outputs: shape.outputs as u32,
                };
                let params = swiglu_rows::Params { inputs, outputs };
                let grid = [shape.grid(self.outputs), 1, 1];
                let (constants, params) = (constants.words(), params.words());
                Dispatch::new(&swiglu_rows::TEXT, constants, params, grid, shape.threads())
            }
            Method::Tiles => {
                let shape = Tiles::of(self.rows, self.outputs, 16);
                let height = shape.height as u32;
                let constants = swiglu_tiles::Constants { gate_bits, gate_group, up_bits, up_group, height };
                let params = swiglu_tiles::Params { rows, inputs, outputs };
                let grid = shape.grid(self.rows, self.outputs);
                let (constants, params) = (constants.words(), params.words());
                Dispatch::new(&swiglu_tiles::TEXT, constants, params, grid, shape.threads())
            }
        })
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Swiglu {
    /// Equal and unequal formats; rows and outputs on both sides of what a simdgroup and a tile take.
    fn gpu_cases() -> Vec<Self> {
        let f = |bits, group| QuantFormat { bits, group };
        let formats =
            [(f(4, 64), f(4, 64)), (f(4, 32), f(8, 64)), (f(8, 128), f(3, 32)), (f(2, 64), f(5, 128))];
        let mut cases = Vec::new();
        for (i, (gate, up)) in formats.into_iter().enumerate() {
            let case = |rows, outputs, inputs, method| Swiglu { rows, outputs, inputs, gate, up, method };
            cases.push(case(1 + i, 13, 640, Method::Rows));
            cases.push(case(4 - i, 9, 128, Method::Rows));
            cases.push(case([5, 20, 40, 70][i], 37, 128 * (1 + i % 2), Method::Tiles));
        }
        let (gate, up) = formats[0];
        let case = |rows, outputs, inputs, method| Swiglu { rows, outputs, inputs, gate, up, method };
        cases.push(case(3, 512, 2048, Method::Rows));
        cases.push(case(4, 1, 64, Method::Rows));
        cases.push(case(2, 1023, 64, Method::Rows));
        cases.push(case(3, 1025, 64, Method::Rows));
        for (rows, outputs) in
            [(1, 1), (16, 16), (17, 17), (32, 64), (33, 65), (64, 128), (65, 130), (7, 2090)]
        {
            cases.push(case(rows, outputs, 64, Method::Tiles));
        }
        cases.push(case(100, 2080, 64, Method::Tiles));
        // Whole fours of groups, which texts of NVIDIA GPUs take.
        for (rows, outputs) in [(1, 1), (33, 65), (64, 128), (129, 200)] {
            cases.push(case(rows, outputs, 512, Method::Tiles));
        }
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::swiglu;
        use crate::testing::{Bounds, CaseBuilder, Matrix, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        // Some gates closed and some open altogether.
        let x = builder.rounded(&random.values(self.rows * self.inputs, 4.0));
        let gate = Matrix::random(random, self.outputs, self.inputs, self.gate);
        let up = Matrix::random(random, self.outputs, self.inputs, self.up);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for x in wide(&x).chunks(self.inputs) {
            for o in 0..self.outputs {
                let product = |m: &Matrix| (m.product(o, x), m.error(b, self.method, o, x));
                let (value, off) = swiglu(b, product(&gate), product(&up));
                want.push(value);
                error.push(off);
            }
        }
        let mut builder = builder.input(&x);
        for matrix in [gate, up] {
            let (weight, scales, biases) = matrix.tensors();
            builder = builder.tensor(weight).tensor(scales).tensor(biases);
        }
        builder.output(want, error).build()
    }
}
