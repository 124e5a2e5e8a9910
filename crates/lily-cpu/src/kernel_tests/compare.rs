//! How far a device's results may be from the f64 definition. Bounds follow from how f32 sums and products round, not
//! from what the kernels happen to reach.

/// The largest relative error of one rounding to f32: half a unit in the last place.
pub(super) const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Of e^x in the loops (2 ulp), and of the standard library's functions (1 ulp), in units of [`U`].
pub(super) const EXP: f64 = 4.0;

/// Roundings that a sum of `n` products sees in the narrowest vector, 4 lanes: a chain a lane, then the lanes' sum and a
/// rest of up to 15 values one by one.
fn depth(n: usize) -> f64 {
    (n / 4 + 16.min(n) + 4) as f64
}

/// The largest error of a sum of n products, as a multiple of the sum of their absolute values.
///
/// Each of the roundings on a term's way is at most [`U`] of a partial sum, which the sum of absolute values bounds. They
/// are independent, so that their sum grows with the root of their number: with a standard deviation of 1/sqrt(3) of the
/// largest, four times the root is seven standard deviations.
pub(super) fn sum_error(n: usize) -> f64 {
    4.0 * depth(n).sqrt() * U
}

/// The relative error of rsqrt(sum or mean of n squares + eps): half of the sum's, and a few operations.
pub(super) fn norm_error(n: usize) -> f64 {
    0.5 * sum_error(n) + 4.0 * U
}

/// The relative error of sigmoid and of SiLU themselves: e^x, one addition, one division and one product.
pub(super) const GATE_ERROR: f64 = (EXP + 4.0) * U;

/// Below the smallest normal f32, where relative errors mean nothing. Also what e^88, the largest that the loops take,
/// leaves of a gate that is closed altogether: |x| e^-88, times what it gates.
pub(super) const TINY: f64 = 1e-35;

/// A value and how far from it a result may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) value: f64,
    pub(super) error: f64,
}

/// Collects the worst ratio of error to bound over the cases of a kernel.
#[derive(Debug, Default)]
pub(super) struct Worst {
    ratio: f64,
    values: usize,
    case: String,
}

impl Worst {
    /// Holds results against the definition, value by value.
    pub(super) fn check(&mut self, case: &impl std::fmt::Debug, got: &[f32], want: &[Want]) {
        assert_eq!(got.len(), want.len(), "{case:?}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (f64::from(*got) - want.value).abs();
            let ratio = off / (want.error + TINY);
            assert!(ratio <= 1.0, "{case:?}, value {i}: {got} is {off:e} off {want:?}");
            if ratio > self.ratio {
                (self.ratio, self.case) = (ratio, format!("{case:?}"));
            }
        }
        self.values += got.len();
    }

    /// The same for values that must be exact.
    pub(super) fn check_exact<T: PartialEq + std::fmt::Debug>(
        &mut self,
        case: &impl std::fmt::Debug,
        got: &[T],
        want: &[T],
    ) {
        assert_eq!(got, want, "{case:?}");
        self.values += got.len();
    }

    pub(super) fn report(&self, kernel: &str) {
        let Worst { ratio, values, case } = self;
        println!("{kernel}: {values} values, worst {ratio:.2} of its bound in {case}");
    }
}

pub(super) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Sum of |a b|.
pub(super) fn magnitude(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
