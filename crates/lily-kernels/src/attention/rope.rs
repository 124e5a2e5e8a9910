//! Rotary position embedding.

use super::MOST_HEAD_DIM;
use crate::bindings::rope;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// The inverse frequency of pair `j`: theta^(-2j / rotary_dim), rounded to f32.
pub(crate) fn frequency(theta: f64, rotary_dim: usize, j: usize) -> f32 {
    theta.powf(-2.0 * j as f64 / rotary_dim as f64) as f32
}

/// theta^(-2 / rotary_dim), the ratio between neighbouring frequencies, as the sum of two f32: what texts make frequencies of.
pub fn ratio(theta: f64, rotary_dim: usize) -> (f32, f32) {
    let ratio = if rotary_dim == 0 { 1.0 } else { theta.powf(-2.0 / rotary_dim as f64) };
    (ratio as f32, (ratio - f64::from(ratio as f32)) as f32)
}

/// Turns the first `rotary_dim` elements of one head, in f64.
pub(crate) fn turn(x: &mut [f64], position: u32, rotary_dim: usize, theta: f64) {
    let half = rotary_dim / 2;
    for j in 0..half {
        let angle = f64::from(position as f32 * frequency(theta, rotary_dim, j));
        let (a, b) = (x[j], x[j + half]);
        x[j] = a * angle.cos() - b * angle.sin();
        x[j + half] = b * angle.cos() + a * angle.sin();
    }
}

/// Each head's first `rotary_dim` elements turned by the row's position, as [`super::AttentionPrep`] turns them; the others
/// copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dimensions that are turned; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub rope_theta: f64,
}

impl Rope {
    /// x act `[rows, heads, head_dim]`; positions u32 `[rows]`; out act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("x").act(), Operand::read("positions").u32(), Operand::write("out").act()];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], positions: &[u32]) -> Vec<f64> {
        let mut out = x.to_vec();
        for (i, head) in out.chunks_mut(self.head_dim).enumerate() {
            turn(head, positions[i / self.heads], self.rotary_dim, self.rope_theta);
        }
        out
    }

    /// Rotary parts of every share, and odd widths.
    pub fn cases() -> Vec<Self> {
        let case =
            |rows, heads, head_dim, rotary_dim| Rope { rows, heads, head_dim, rotary_dim, rope_theta: 1e7 };
        vec![
            case(1, 16, 256, 64),
            case(9, 2, 40, 40),
            case(5, 2, 33, 2),
            case(3, 1, 256, 256),
            case(2, 3, 6, 4),
        ]
    }
}

impl Contract for Rope {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let x = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(4 * self.rows), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        crate::product(&[3, self.rows, self.heads, self.rotary_dim])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let (ratio_high, ratio_low) = ratio(self.rope_theta, self.rotary_dim);
        let params = rope::Params {
            heads: self.heads as u32,
            width: self.head_dim as u32,
            pairs: self.rotary_dim as u32 / 2,
            ratio_high,
            ratio_low,
        };
        let grid = [self.rows, self.heads.div_ceil(8), 1];
        let launch = Dispatch::new(&rope::TEXT, Vec::new(), params.words(), grid, [256, 1, 1]);
        (self.head_dim <= MOST_HEAD_DIM).then_some(launch)
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Rope {
    fn gpu_cases() -> Vec<Self> {
        Rope::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        let x = builder.rounded(&random.values(self.rows * self.heads * self.head_dim, 2.0));
        let positions: Vec<u32> = (0..self.rows).map(|_| random.below(262_144) as u32).collect();
        let want = self.reference(&wide(&x), &positions);
        let pairs = self.rotary_dim / 2;
        let error = want.iter().enumerate().map(|(i, v)| {
            let e = i % self.head_dim;
            let other = if e < pairs { i + pairs } else { i.wrapping_sub(pairs) };
            let turned =
                if e < 2 * pairs { v.hypot(want[other]) * (b.function() + 3.0 * b.f32()) } else { 0.0 };
            b.store(*v, turned)
        });
        let error = error.collect();
        builder.input(&x).ids(&positions).output(want, error).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two floats whose sum is a product of such sums, as in msl/rope.h.
    fn product(a: (f32, f32), b: (f32, f32)) -> (f32, f32) {
        let high = a.0 * b.0;
        let low = a.0.mul_add(b.1, a.1.mul_add(b.0, a.0.mul_add(b.0, -high)));
        let sum = high + low;
        (sum, low - (sum - high))
    }

    fn frequency_of_text(theta: f64, rotary_dim: usize, mut j: usize) -> f32 {
        let (mut power, mut out) = (ratio(theta, rotary_dim), (1.0, 0.0));
        while j > 0 {
            if j & 1 == 1 {
                out = product(out, power);
            }
            power = product(power, power);
            j >>= 1;
        }
        out.0
    }

    /// The texts' way to a frequency gives the bits of the definition: without exception for the sizes that models have, and
    /// otherwise but for those within 2^-16 of half a unit in the last place.
    #[test]
    fn frequencies_of_texts_are_those_of_the_definition() {
        let (mut all, mut other) = (0, 0);
        for theta in [1e4, 5e5, 1e6, 5e6, 1e7, 1e9] {
            for rotary_dim in (2..=256).step_by(2) {
                for j in 0..rotary_dim / 2 {
                    let same = frequency_of_text(theta, rotary_dim, j) == frequency(theta, rotary_dim, j);
                    let common = [32, 64, 128, 256].contains(&rotary_dim);
                    assert!(same || !common, "{theta} {rotary_dim} {j}");
                    all += 1;
                    other += usize::from(!same);
                }
            }
        }
        assert!(other * 4096 < all, "{other} of {all}");
    }
}
