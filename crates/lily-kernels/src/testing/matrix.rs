//! Quantized matrices of cases, and how far products with them may be off.

use super::{Bounds, dot, magnitude};
use crate::quant::Method;
use crate::random::{QuantizedBytes, Random};
use crate::{QuantFormat, bf16_to_f32};

/// A random quantized matrix, and what its bytes mean.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Its tensors.
    pub bytes: QuantizedBytes,
    cols: usize,
    /// scale * q + bias.
    values: Vec<f64>,
    /// |scale * q| + |bias|: where these two are summed apart, their errors do not cancel.
    terms: Vec<f64>,
}

impl Matrix {
    /// `[rows, cols]`.
    pub fn random(random: &mut Random, rows: usize, cols: usize, format: QuantFormat) -> Self {
        let bytes = random.quantized(rows, cols, format);
        let (mut values, mut terms) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let w = format.dequantize_row(&bytes.weight, &bytes.scales, &bytes.biases, row, cols);
            terms.extend(w.iter().enumerate().map(|(i, w)| {
                let at = row * format.scale_bytes(cols) + 2 * (i / format.group);
                let bits = u16::from_le_bytes([bytes.biases[at], bytes.biases[at + 1]]);
                let bias = f64::from(bf16_to_f32(bits));
                (w - bias).abs() + bias.abs()
            }));
            values.extend(w);
        }
        Matrix { bytes, cols, values, terms }
    }

    /// The three tensors.
    pub fn tensors(&self) -> (&[u8], &[u8], &[u8]) {
        (&self.bytes.weight, &self.bytes.scales, &self.bytes.biases)
    }

    /// Row `o`.
    pub fn row(&self, o: usize) -> &[f64] {
        &self.values[o * self.cols..][..self.cols]
    }

    /// |scale * q| + |bias| of row `o`.
    pub fn terms(&self, o: usize) -> &[f64] {
        &self.terms[o * self.cols..][..self.cols]
    }

    /// How far the f32 product of x with row `o` may be off, for x as it is.
    pub fn error(&self, b: Bounds, method: Method, o: usize, x: &[f64]) -> f64 {
        match method {
            // Scale and bias are taken apart, each run of inputs at once.
            Method::Rows => b.sum(self.cols, 32) * magnitude(x, self.terms(o)),
            Method::Tiles => self.tile_error(b, o, x),
        }
    }

    /// Weights are rounded to the type of tiles, then summed one after the other.
    fn tile_error(&self, b: Bounds, o: usize, x: &[f64]) -> f64 {
        let b = b.fine();
        let squares: f64 = x.iter().zip(self.row(o)).map(|(x, w)| (x * w) * (x * w)).sum();
        // scale * q + bias is rounded to f32 first; float16 holds small weights with an absolute error.
        let rounded =
            b.f32() * magnitude(x, self.terms(o)) + b.least() * x.iter().map(|x| x.abs()).sum::<f64>();
        b.tile_weights() * squares.sqrt() + rounded + b.sum(self.cols, 1) * magnitude(x, self.row(o))
    }

    /// x times row `o`.
    pub fn product(&self, o: usize, x: &[f64]) -> f64 {
        dot(x, self.row(o))
    }
}
