//! Normalised q and k, decay and beta of Gated DeltaNet.

use crate::quant::sigmoid;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// From the convolved channels (q, then k, then v) and the a and b projections, for each row:
///
/// - q^ = q * rsqrt(sum q^2 + 1e-6) / sqrt(key_dim), k^ = k * rsqrt(sum k^2 + 1e-6), a key head at a time. The epsilon
///   is on the SUM of squares, and 1/sqrt(key_dim) is in q^ only (transformers, `l2norm` of qwen3_next).
/// - kappa = k^ . q^, so that the scan reads its state once;
/// - decay = exp(-exp(A_log) * softplus(a + dt_bias)), beta = sigmoid(b), a value head at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaPrep {
    /// Rows.
    pub rows: usize,
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// How A_log is stored.
    pub a_log: PlainType,
    /// How dt_bias is stored.
    pub dt_bias: PlainType,
}

/// Added to the sum of squares of q and of k.
pub const L2_EPS: f32 = 1e-6;

/// What [`DeltaPrep`] makes.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaPrepared {
    /// `[rows, key_heads, key_dim]`.
    pub q: Vec<f64>,
    /// `[rows, key_heads, key_dim]`.
    pub k: Vec<f64>,
    /// `[rows, key_heads]`.
    pub kappa: Vec<f64>,
    /// `[rows, value_heads]`.
    pub decay: Vec<f64>,
    /// `[rows, value_heads]`.
    pub beta: Vec<f64>,
}

impl DeltaPrep {
    /// conv f32 `[rows, channels]`; a, b f32 `[rows, value_heads]`; a_log, dt_bias `[value_heads]`; q, k f32 [rows, key_heads,
    /// key_dim]; kappa f32 `[rows, key_heads]`; decay, beta f32 `[rows, value_heads]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("conv").act(),
        Operand::read("a").act(),
        Operand::read("b").act(),
        Operand::read("a_log").tensor(),
        Operand::read("dt_bias").tensor(),
        Operand::write("q").act(),
        Operand::write("k").act(),
        Operand::write("kappa"),
        Operand::write("decay"),
        Operand::write("beta"),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The definition, in f64.
    pub fn reference(
        &self,
        conv: &[f64],
        a: &[f64],
        b: &[f64],
        a_log: &[f64],
        dt_bias: &[f64],
    ) -> DeltaPrepared {
        let mut out = DeltaPrepared { q: vec![], k: vec![], kappa: vec![], decay: vec![], beta: vec![] };
        let (width, eps) = (self.key_heads * self.key_dim, f64::from(L2_EPS));
        let unit = |x: &[f64], scale: f64| {
            let norm = (x.iter().map(|v| v * v).sum::<f64>() + eps).sqrt();
            x.iter().map(|v| v / norm * scale).collect::<Vec<f64>>()
        };
        for r in 0..self.rows {
            let row = &conv[r * self.channels()..][..self.channels()];
            for h in 0..self.key_heads {
                let q = unit(&row[h * self.key_dim..][..self.key_dim], 1.0 / (self.key_dim as f64).sqrt());
                let k = unit(&row[width + h * self.key_dim..][..self.key_dim], 1.0);
                out.kappa.push(q.iter().zip(&k).map(|(q, k)| q * k).sum());
                out.q.extend(q);
                out.k.extend(k);
            }
            for h in 0..self.value_heads {
                let dt = a[r * self.value_heads + h] + dt_bias[h];
                let softplus = dt.max(0.0) + (-dt.abs()).exp().ln_1p();
                out.decay.push((-a_log[h].exp() * softplus).exp());
                out.beta.push(sigmoid(b[r * self.value_heads + h]));
            }
        }
        out
    }

    /// Equal and unequal head counts; widths that fill no vector; both types of vectors.
    pub fn cases() -> Vec<Self> {
        let case = |rows, key_heads, value_heads, key_dim, value_dim, (a_log, dt_bias)| DeltaPrep {
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            a_log,
            dt_bias,
        };
        let (usual, other) = ((PlainType::F32, PlainType::Bf16), (PlainType::Bf16, PlainType::F32));
        vec![
            case(1, 2, 4, 128, 128, usual),
            case(5, 2, 4, 32, 64, other),
            case(3, 3, 3, 37, 16, usual),
            case(2, 1, 3, 5, 4, other),
        ]
    }
}

impl Contract for DeltaPrep {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let size = activation.bytes();
        let (keys, values) = (self.rows * self.key_heads, self.rows * self.value_heads);
        let width = Traffic::written(size * keys * self.key_dim);
        vec![
            Traffic::read(2 * size * keys * self.key_dim),
            Traffic::read(size * values),
            Traffic::read(size * values),
            Traffic::read(self.value_heads * self.a_log.bytes()),
            Traffic::read(self.value_heads * self.dt_bias.bytes()),
            width,
            width,
            Traffic::written(4 * keys),
            Traffic::written(4 * values),
            Traffic::written(4 * values),
        ]
    }

    fn flops(&self) -> u64 {
        (self.rows * (8 * self.key_heads * self.key_dim + 16 * self.value_heads)) as u64
    }
}
