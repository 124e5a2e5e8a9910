//! How far a text's results may be from the f64 definition. Bounds follow from how sums and products round, not from what
//! the texts happen to reach.

use crate::Activation;

/// The largest relative error of one rounding to f32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// Below the smallest normal f32, where relative errors mean nothing.
pub const TINY: f64 = 1e-35;

/// Error bounds for one type of activations.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    activation: Activation,
}

impl Bounds {
    /// For a type of activations.
    pub fn new(activation: Activation) -> Self {
        Bounds { activation }
    }

    /// The type.
    pub fn activation(self) -> Activation {
        self.activation
    }

    /// For what is stored as [`Activation::fine`].
    pub fn fine(self) -> Self {
        Bounds::new(self.activation.fine())
    }

    /// The relative error of one rounding to f32.
    pub fn f32(self) -> f64 {
        U
    }

    /// The relative error of one rounding to the type of activations.
    pub fn stored(self) -> f64 {
        self.activation.rounding()
    }

    /// Of a function of the standard library, relative, some units in the last place.
    pub fn function(self) -> f64 {
        8.0 * U
    }

    /// The error of an f32 sum of n products, as a multiple of the sum of their absolute values. A term sees at most n / 32
    /// additions of its lane and a tree behind them; roundings are independent, so that their sum grows with the root of
    /// their number: four times the root is seven standard deviations. `lanes` is 32 where a simdgroup shares the sum, 1
    /// where one thread (or a tile) makes it.
    pub fn sum(self, n: usize, lanes: usize) -> f64 {
        4.0 * ((n.div_ceil(lanes) + 16) as f64).sqrt() * U
    }

    /// The error of a sum of n products of which one factor was rounded to the type of activations first (weights in a
    /// tile), as a multiple of the root of the sum of the products' squares (independent errors), seven standard deviations.
    pub fn tile_weights(self) -> f64 {
        match self.activation {
            Activation::F32 => 0.0,
            // An error is uniform within the rounding: 1/sqrt(3) of it is its deviation.
            _ => 7.0 / 3.0f64.sqrt() * self.stored(),
        }
    }

    /// Of SiLU of an exact value times another, relative: the exponential, a sum, a quotient, a product.
    pub fn silu(self) -> f64 {
        self.function() + 4.0 * U
    }

    /// Of the factor of an RMSNorm of `width` values that a simdgroup sums, relative: half of the sum's error through the
    /// root, then the root itself.
    pub fn norm(self, width: usize) -> f64 {
        0.5 * self.sum(width, 32) + self.function()
    }

    /// Half of the smallest step of the type of activations, which values near 0 are rounded to.
    pub fn least(self) -> f64 {
        if self.activation == Activation::F16 { 1.0 / (1u64 << 25) as f64 } else { 0.0 }
    }

    /// What storing `value` with an error of `error` as an activation adds.
    pub fn store(self, value: f64, error: f64) -> f64 {
        error
            + (value.abs() + error) * self.stored()
            + if self.activation == Activation::F16 { 6.2e-5 } else { TINY }
    }
}

/// Sum of a b.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Sum of |a b|.
pub fn magnitude(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}
