//! RMSNorm over rows.

use crate::{Operand, PlainType};

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
pub(crate) fn rms_norm(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + eps).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}

impl RmsNorm {
    /// x f32 `[rows, width]`; w `[width]`; out f32 `[rows, width]`.
    pub const OPERANDS: &'static [Operand] = &[Operand::read("x"), Operand::read("w"), Operand::write("out")];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        x.chunks(self.width).flat_map(|row| rms_norm(row, w, f64::from(self.eps))).collect()
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
