//! The norm and gate after Gated DeltaNet.

use super::normed;
use crate::bindings::gated_norm;
use crate::quant::silu;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// `out[r, h] = RMSNorm(y[r, h]; w) * SiLU(z[r, h]): the norm comes before the gate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// Rows.
    pub rows: usize,
    /// Value heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How w is stored.
    pub weight: PlainType,
}

impl GatedNorm {
    /// y, z f32 `[rows, heads, width]`; w `[width]`; out f32 `[rows, heads, width]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("y").fine(),
        Operand::read("z").fine(),
        Operand::read("w").tensor(),
        Operand::write("out").fine(),
    ];

    /// The definition, in f64.
    pub fn reference(&self, y: &[f64], z: &[f64], w: &[f64]) -> Vec<f64> {
        let normed = y.chunks(self.width).flat_map(|head| normed(head, w, f64::from(self.eps)));
        normed.zip(z).map(|(y, z)| y * silu(*z)).collect()
    }

    /// Head widths that do and do not fill a vector.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, width, eps, weight| GatedNorm { rows, heads, width, eps, weight };
        vec![
            case(1, 4, 128, 1e-6, PlainType::Bf16),
            case(5, 3, 64, 0.2, PlainType::F32),
            case(2, 2, 37, 1e-6, PlainType::Bf16),
            case(1, 1, 3, 1e-6, PlainType::F32),
        ]
    }
}

impl Contract for GatedNorm {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let bytes = activation.bytes() * self.rows * self.heads * self.width;
        let weight = Traffic::read(self.width * self.weight.bytes());
        vec![Traffic::read(bytes), Traffic::read(bytes), weight, Traffic::written(bytes)]
    }

    fn flops(&self) -> u64 {
        crate::product(&[8, self.rows, self.heads, self.width])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = gated_norm::Constants { weight_is_f32: self.weight == PlainType::F32 };
        let heads = self.rows * self.heads;
        let params = gated_norm::Params { heads: heads as u32, width: self.width as u32, eps: self.eps };
        let grid = [heads.div_ceil(4), 1, 1];
        Some(Dispatch::new(&gated_norm::TEXT, constants.words(), params.words(), grid, [128, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for GatedNorm {
    fn gpu_cases() -> Vec<Self> {
        GatedNorm::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, plain, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        let len = self.rows * self.heads * self.width;
        let y = builder.rounded(&random.values(len, 0.5));
        let builder = builder.input(&y);
        let z = builder.rounded(&random.values(len, 3.0));
        let (w, w_values) = plain(random, self.weight, self.width, 1.0, 0.5);
        let want = self.reference(&wide(&y), &wide(&z), &w_values);
        let relative = b.norm(self.width) + 3.0 * b.f32() + b.silu();
        let error = want.iter().map(|v| b.fine().store(*v, v.abs() * relative)).collect();
        builder.input(&z).tensor(&w).output(want, error).build()
    }
}
