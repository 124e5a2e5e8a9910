//! RMSNorm over rows.

use crate::bindings::rms_norm;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// `out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * w`.
///
/// MLX checkpoints store w as 1 + the trained weight, so nothing is added here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Rows.
    pub rows: usize,
    /// Width of a row.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How w is stored.
    pub weight: PlainType,
}

/// RMSNorm of one vector, in f64.
pub(crate) fn normed(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}

impl RmsNorm {
    /// x f32 `[rows, width]`; w `[width]`; out f32 `[rows, width]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("x"), Operand::read("w").tensor(), Operand::write("out").fine()];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        x.chunks(self.width).flat_map(|row| normed(row, w, f64::from(self.eps))).collect()
    }

    /// Widths that fill no vector, and a large epsilon so that leaving it out shows.
    pub fn cases() -> Vec<Self> {
        let mut cases = Vec::new();
        for width in [1, 15, 16, 128, 2048, 2051] {
            for (rows, eps, weight) in [(1, 1e-6, PlainType::Bf16), (3, 0.3, PlainType::F32)] {
                cases.push(RmsNorm { rows, width, eps, weight });
            }
        }
        cases
    }
}

impl Contract for RmsNorm {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let len = self.rows * self.width;
        vec![
            Traffic::read(4 * len),
            Traffic::read(self.width * self.weight.bytes()),
            Traffic::written(activation.bytes() * len),
        ]
    }

    fn flops(&self) -> u64 {
        crate::product(&[4, self.rows, self.width])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = rms_norm::Constants { weight_is_f32: self.weight == PlainType::F32 };
        let params = rms_norm::Params { width: self.width as u32, eps: self.eps };
        let grid = [self.rows, 1, 1];
        Some(Dispatch::new(&rms_norm::TEXT, constants.words(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for RmsNorm {
    fn gpu_cases() -> Vec<Self> {
        RmsNorm::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, plain, wide};
        let b = Bounds::new(activation);
        let x = random.values(self.rows * self.width, 2.0);
        let (w, w_values) = plain(random, self.weight, self.width, 1.0, 0.5);
        let want = self.reference(&wide(&x), &w_values);
        // Half of the sum's error through the root, the root itself, and two products.
        let relative = 0.5 * b.sum(self.width, 32) + b.function() + 3.0 * b.f32();
        let error = want.iter().map(|v| b.fine().store(*v, v.abs() * relative)).collect();
        CaseBuilder::new(*self, activation).input(&x).tensor(&w).output(want, error).build()
    }
}
