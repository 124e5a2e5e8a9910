//! The weighted sum of experts, the shared expert, and the residual.

use crate::bindings::combine;
use crate::quant::sigmoid;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// `x[r] += sum over slots j of weights[r, j] * expert_out[r * top_k + j] + sigmoid(shared_gate[r]) * shared[r]`.
///
/// Slots are summed in slot order, the shared expert last, then the sum is added to the residual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Combine {
    /// Rows.
    pub rows: usize,
    /// Experts each row uses.
    pub top_k: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Multiplies by the weights; otherwise `expert_out` already carries them, and they are not read.
    pub weighted: bool,
}

impl Combine {
    /// expert_out activations `[rows * top_k, width]`; weights f32 `[rows, top_k]`; shared activations `[rows, width]`;
    /// shared_gate f32 `[rows]`; x f32 `[rows, width]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("expert_out").fine(),
        Operand::read("weights"),
        Operand::read("shared").fine(),
        Operand::read("shared_gate"),
        Operand::update("x"),
    ];

    /// The definition, in f64.
    pub fn reference(
        &self,
        expert_out: &[f64],
        weights: &[f64],
        shared: &[f64],
        shared_gate: &[f64],
        x: &[f64],
    ) -> Vec<f64> {
        let mut y = x.to_vec();
        for r in 0..self.rows {
            for i in 0..self.width {
                for j in 0..self.top_k {
                    let p = r * self.top_k + j;
                    let weight = if self.weighted { weights[p] } else { 1.0 };
                    y[r * self.width + i] += weight * expert_out[p * self.width + i];
                }
                y[r * self.width + i] += sigmoid(shared_gate[r]) * shared[r * self.width + i];
            }
        }
        y
    }

    /// Widths that do and do not fill a vector.
    pub fn cases() -> Vec<Self> {
        let case = |rows, top_k, width| Combine { rows, top_k, width, weighted: true };
        vec![case(1, 8, 256), case(5, 2, 37), case(3, 1, 64), case(2, 4, 7)]
    }
}

impl Contract for Combine {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, pairs) = (activation.bytes(), self.rows * self.top_k);
        vec![
            Traffic::read(size * pairs * self.width),
            Traffic::read(if self.weighted { 4 * pairs } else { 0 }),
            Traffic::read(size * self.rows * self.width),
            Traffic::read(4 * self.rows),
            Traffic::updated(4 * self.rows * self.width),
        ]
    }

    fn flops(&self) -> u64 {
        (2 * self.rows * (self.top_k + 1) * self.width) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let constants = combine::Constants { weighted: self.weighted };
        let params = combine::Params { top_k: self.top_k as u32, width: self.width as u32 };
        let elements = if self.width.is_multiple_of(4) { self.width / 4 } else { self.width };
        let threads = elements.next_multiple_of(32).min(256);
        let grid = [elements.div_ceil(threads), self.rows, 1];
        Some(Dispatch::new(&combine::TEXT, constants.words(), params.words(), grid, [threads, 1, 1]))
    }
}

/// How far off x may be, relative to the sum of the terms' absolute values: roundings of `terms` sums and products one after
/// the other, and the shared expert's gate.
#[cfg(feature = "testing")]
pub(super) fn sum_error(b: crate::testing::Bounds, top_k: usize) -> f64 {
    b.sum(top_k + 2, 1) + b.function() + 2.0 * b.f32()
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Combine {
    /// Rows of vectors and of single elements, in one threadgroup and several.
    fn gpu_cases() -> Vec<Self> {
        let case = |rows, top_k, width, weighted| Combine { rows, top_k, width, weighted };
        let mut cases = Combine::cases();
        cases.extend([
            case(2, 8, 2048, false),
            case(3, 8, 1028, true),
            case(2, 3, 259, false),
            case(1, 1, 1, true),
        ]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, wide};
        let b = Bounds::new(activation);
        let pairs = self.rows * self.top_k;
        let build = CaseBuilder::new(*self, activation);
        let out = build.rounded(&random.values(pairs * self.width, 1.0));
        let weights: Vec<f32> = (0..pairs).map(|_| 0.5 + 0.5 * random.unit()).collect();
        // Not read: NaN would show.
        let stored = if self.weighted { weights.clone() } else { vec![f32::NAN; pairs] };
        let build = build.input(&out).input(&stored);
        let shared = build.rounded(&random.values(self.rows * self.width, 1.0));
        let (x, mut gate) = (random.values(self.rows * self.width, 2.0), random.values(self.rows, 4.0));
        gate[self.rows - 1] = if self.top_k == 8 { -200.0 } else { 200.0 };
        let absolute = |v: &[f32]| v.iter().map(|v| f64::from(v.abs())).collect::<Vec<f64>>();
        let (weights, gates) = (wide(&weights), wide(&gate));
        let want = self.reference(&wide(&out), &weights, &wide(&shared), &gates, &wide(&x));
        let sizes = self.reference(&absolute(&out), &weights, &absolute(&shared), &gates, &absolute(&x));
        let error = sizes.iter().map(|size| size * sum_error(b, self.top_k)).collect();
        build.input(&shared).input(&gate).update(&x, want, error).build()
    }
}
