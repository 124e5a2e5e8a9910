//! RMSNorm of each head.

use crate::bindings::head_norm;
use crate::norm::normed;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// `out[r, i] = x[r, i] * rsqrt(mean(x[r, i]^2) + eps) * w`: the same w for all heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// How w is stored.
    pub weight: PlainType,
}

impl HeadNorm {
    /// x act `[rows, heads, head_dim]`; w `[head_dim]`; out act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("x").act(), Operand::read("w").tensor(), Operand::write("out").act()];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        x.chunks(self.head_dim).flat_map(|head| normed(head, w, f64::from(self.eps))).collect()
    }

    /// Widths that fill no vector, and a large epsilon so that leaving it out shows.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, head_dim, eps, weight| HeadNorm { rows, heads, head_dim, eps, weight };
        vec![
            case(1, 16, 256, 1e-6, PlainType::Bf16),
            case(3, 3, 33, 0.3, PlainType::F32),
            case(5, 2, 64, 1e-6, PlainType::F32),
            case(1, 1, 5, 0.3, PlainType::Bf16),
            case(2, 1, 300, 1e-6, PlainType::Bf16),
        ]
    }
}

impl Contract for HeadNorm {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let x = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(self.head_dim * self.weight.bytes()), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        crate::product(&[4, self.rows, self.heads, self.head_dim])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = head_norm::Constants { weight_is_f32: self.weight == PlainType::F32 };
        let heads = self.rows * self.heads;
        let params = head_norm::Params { heads: heads as u32, width: self.head_dim as u32, eps: self.eps };
        let grid = [heads.div_ceil(8), 1, 1];
        Some(Dispatch::new(&head_norm::TEXT, constants.words(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for HeadNorm {
    fn gpu_cases() -> Vec<Self> {
        HeadNorm::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, plain, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        let x = builder.rounded(&random.values(self.rows * self.heads * self.head_dim, 2.0));
        let (w, w_values) = plain(random, self.weight, self.head_dim, 1.0, 0.5);
        let want = self.reference(&wide(&x), &w_values);
        // Half of the sum's error through the root, the root itself, and two products.
        let relative = 0.5 * b.sum(self.head_dim, 32) + b.function() + 3.0 * b.f32();
        let error = want.iter().map(|v| b.store(*v, v.abs() * relative)).collect();
        builder.input(&x).tensor(&w).output(want, error).build()
    }
}
