//! A quantized matrix written out, for products that dequantize in a launch of their own.

use crate::bindings::dequantize;
use crate::{Activation, Contract, Dispatch, Operand, QuantFormat, Traffic};

/// `out[o, i] = scale * q[o, i] + bias`; on GPUs only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dequantize {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Of the matrix.
    pub format: QuantFormat,
}

impl Dequantize {
    /// weight, scales, biases, out activations: `[rows, cols]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("weight").tensor(),
        Operand::read("scales").tensor(),
        Operand::read("biases").tensor(),
        Operand::write("out").fine(),
    ];

    /// Every format.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for bits in QuantFormat::BITS {
            for group in QuantFormat::GROUPS {
                cases.push(Dequantize { rows: 37, cols: 3 * group, format: QuantFormat { bits, group } });
            }
        }
        cases
    }

    /// The definition, in f64.
    pub fn reference(&self, weight: &[u8], scales: &[u8], biases: &[u8]) -> Vec<f64> {
        (0..self.rows)
            .flat_map(|r| self.format.dequantize_row(weight, scales, biases, r, self.cols))
            .collect()
    }
}

impl Contract for Dequantize {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let mut all = self.format.reads(self.rows, self.cols).to_vec();
        all.push(Traffic::written(activation.bytes() * self.rows * self.cols));
        all
    }

    fn flops(&self) -> u64 {
        crate::product(&[2, self.rows, self.cols])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants =
            dequantize::Constants { bits: self.format.bits as u32, group: self.format.group as u32 };
        let params = dequantize::Params { rows: self.rows as u32, cols: self.cols as u32 };
        let grid = [(self.rows * self.cols / 16).div_ceil(256), 1, 1];
        Some(Dispatch::new(&dequantize::TEXT, constants.words(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Dequantize {
    fn gpu_cases() -> Vec<Self> {
        let case =
            |(bits, group)| Dequantize { rows: 37, cols: 3 * group, format: QuantFormat { bits, group } };
        super::testing::FORMATS.map(case).to_vec()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder};
        let b = Bounds::new(activation);
        let q = random.quantized(self.rows, self.cols, self.format);
        let want = self.reference(&q.weight, &q.scales, &q.biases);
        let error = want.iter().map(|v| b.fine().store(*v, v.abs() * b.f32())).collect();
        let builder = CaseBuilder::new(*self, activation);
        builder.tensor(&q.weight).tensor(&q.scales).tensor(&q.biases).output(want, error).build()
    }
}
