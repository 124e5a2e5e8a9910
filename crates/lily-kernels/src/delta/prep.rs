//! Normalised q and k, decay and beta of Gated DeltaNet.

use crate::bindings::delta_prep;
use crate::quant::sigmoid;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

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
        Operand::read("conv").fine(),
        Operand::read("a").fine(),
        Operand::read("b").fine(),
        Operand::read("a_log").tensor(),
        Operand::read("dt_bias").tensor(),
        Operand::write("q").fine(),
        Operand::write("k").fine(),
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

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = delta_prep::Constants {
            a_log_is_f32: self.a_log == PlainType::F32,
            dt_bias_is_f32: self.dt_bias == PlainType::F32,
            whole: self.key_dim.is_multiple_of(4) && self.channels().is_multiple_of(4),
        };
        let params = delta_prep::Params {
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            key_dim: self.key_dim as u32,
            channels: self.channels() as u32,
            eps: L2_EPS,
        };
        // A simdgroup a key head, four to a threadgroup.
        let grid = [self.key_heads.div_ceil(4), self.rows, 1];
        Some(Dispatch::new(&delta_prep::TEXT, constants.words(), params.words(), grid, [128, 1, 1]))
    }
}

/// What decay and beta may be off by.
#[cfg(feature = "testing")]
pub(super) fn gate_errors(b: crate::testing::Bounds, dt: f64, decay: f64, beta: f64) -> (f64, f64) {
    // ln(decay) = -exp(a_log) softplus(dt): rounding dt changes softplus by |dt| U of itself at most, the two functions and
    // their product add their own; then the last exp. Below exp(-100) nothing of it is left.
    let exponent = decay.ln().abs().min(100.0);
    let relative = (dt.abs() * b.f32() + 3.0 * b.function()) * exponent + b.function();
    (decay * relative + crate::testing::TINY, beta * 2.0 * b.function() + crate::testing::TINY)
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for DeltaPrep {
    fn gpu_cases() -> Vec<Self> {
        let case = |rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias| DeltaPrep {
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            a_log,
            dt_bias,
        };
        let mut cases = DeltaPrep::cases();
        cases.extend([
            case(2, 16, 32, 128, 128, PlainType::F32, PlainType::Bf16),
            // Heads of more than one round of a simdgroup; rows that are no fours although the heads are; more than 32 value
            // heads to a key head.
            case(3, 5, 5, 256, 32, PlainType::F32, PlainType::F32),
            case(2, 1, 2, 132, 33, PlainType::Bf16, PlainType::Bf16),
            case(4, 4, 4, 130, 3, PlainType::F32, PlainType::Bf16),
            case(1, 1, 40, 8, 4, PlainType::F32, PlainType::Bf16),
        ]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, magnitude, plain, wide};
        let (b, builder) = (Bounds::new(activation), CaseBuilder::new(*self, activation));
        let mut conv = random.values(self.rows * self.channels(), 1.0);
        // A head so small that the epsilon decides, where its values have a float16.
        let small = if activation == Activation::F16 { 0.03 } else { 1e-4 };
        conv[..self.key_dim].iter_mut().for_each(|x| *x *= small);
        let conv = builder.rounded(&conv);
        let values = self.rows * self.value_heads;
        let (mut a, mut beta) = (random.values(values, 3.0), random.values(values, 3.0));
        // Gates far out on both sides.
        (a[0], beta[0]) = (40.0, -60.0);
        (a[values - 1], beta[values - 1]) = (-90.0, 95.0);
        let (a, beta) = (builder.rounded(&a), builder.rounded(&beta));
        let (a_log, a_log_values) = plain(random, self.a_log, self.value_heads, 0.0, 2.7);
        let (dt_bias, dt_values) = plain(random, self.dt_bias, self.value_heads, -4.0, 2.0);
        let want = self.reference(&wide(&conv), &wide(&a), &wide(&beta), &a_log_values, &dt_values);

        // Half of the sum's error through the root, two roots and two products.
        let unit = 0.5 * b.sum(self.key_dim, 32) + 2.0 * b.function() + 3.0 * b.f32();
        let units =
            |values: &[f64]| values.iter().map(|v| b.fine().store(*v, v.abs() * unit)).collect::<Vec<f64>>();
        let (q_error, k_error) = (units(&want.q), units(&want.k));
        let heads = want.q.chunks(self.key_dim).zip(want.k.chunks(self.key_dim));
        let errors = q_error.chunks(self.key_dim).zip(k_error.chunks(self.key_dim));
        let kappa_error = heads.zip(errors).map(|((q, k), (q_error, k_error))| {
            b.sum(self.key_dim, 32) * magnitude(q, k)
                + magnitude(q_error, k)
                + magnitude(q, k_error)
                + magnitude(q_error, k_error)
        });
        let kappa_error = kappa_error.collect();
        let gates = want.decay.iter().zip(&want.beta).enumerate().map(|(i, (decay, beta))| {
            gate_errors(b, f64::from(a[i]) + dt_values[i % self.value_heads], *decay, *beta)
        });
        let (decay_error, beta_error) = gates.unzip();
        let case = builder.input(&conv).input(&a).input(&beta).tensor(&a_log).tensor(&dt_bias);
        let case = case.output(want.q, q_error).output(want.k, k_error).output(want.kappa, kappa_error);
        case.output(want.decay, decay_error).output(want.beta, beta_error).build()
    }
}
