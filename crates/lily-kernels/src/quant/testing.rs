//! What the cases of this family share.

use super::{Method, Output, silu};
use crate::random::Random;
use crate::testing::{Bounds, CaseBuilder, Matrix, Store, magnitude, wide};
use crate::{Activation, Element};

/// Every number of bits; every group with those that have fast paths.
pub(super) const FORMATS: [(usize, usize); 12] = [
    (2, 64),
    (3, 32),
    (3, 128),
    (4, 32),
    (4, 64),
    (4, 128),
    (5, 64),
    (6, 32),
    (6, 128),
    (8, 32),
    (8, 64),
    (8, 128),
];

/// The last operand of a product: what is there before, and what must be there after.
pub(super) struct Product {
    out: Output,
    activation: Activation,
    before: Vec<f32>,
    want: Vec<f64>,
    error: Vec<f64>,
}

impl Product {
    /// Of `len` outputs.
    pub(super) fn new(out: Output, activation: Activation, len: usize, random: &mut Random) -> Self {
        let before = if out == Output::Add { random.values(len, 1.0) } else { Vec::new() };
        Product { out, activation, before, want: vec![0.0; len], error: vec![f64::INFINITY; len] }
    }

    /// What is there before, for the definition.
    pub(super) fn before(&self) -> Vec<f64> {
        wide(&self.before)
    }

    /// What the definition says is there after.
    pub(super) fn want(mut self, want: Vec<f64>) -> Self {
        self.want = want;
        self
    }

    /// The product at `place` may be off by `error` before it is stored or added.
    pub(super) fn error(&mut self, place: usize, error: f64) {
        let (b, want) = (Bounds::new(self.activation), self.want[place]);
        self.error[place] = match self.out {
            Output::Activation => b.store(want, error),
            Output::Fine => b.fine().store(want, error),
            Output::F32 => error + b.f32() * want.abs(),
            Output::Add => error + b.f32() * (want.abs() + error),
        };
    }

    /// Into a case.
    pub(super) fn finish(self, builder: CaseBuilder) -> CaseBuilder {
        match self.out {
            Output::Activation | Output::Fine => {
                let element = if self.out == Output::Fine { Element::Fine } else { Element::Activation };
                builder.output_as(Store::of(element, self.activation), self.want, self.error)
            }
            Output::F32 => builder.output_as(Store::F32, self.want, self.error),
            Output::Add => builder.update_as(Store::F32, &self.before, self.want, self.error),
        }
    }
}

/// How far off the product of a normed row `x` with row `o` may be where the norm's factor is applied to the sum.
pub(super) fn normed_product_error(b: Bounds, matrix: &Matrix, o: usize, x: &[f64]) -> f64 {
    // x * weight is rounded before the product, the factor and the product with it after.
    let factor = b.norm(x.len()) + 2.0 * b.f32();
    let rounded = b.f32() * magnitude(x, matrix.terms(o));
    matrix.error(b, Method::Rows, o, x) + rounded + factor * matrix.product(o, x).abs()
}

/// SiLU(gate) * up and how far off it may be, stored, from two products and their errors.
pub(super) fn swiglu(b: Bounds, gate: (f64, f64), up: (f64, f64)) -> (f64, f64) {
    // SiLU is nowhere steeper than 1.1.
    let (open, error) = (silu(gate.0), 1.1 * gate.1);
    let value = open * up.0;
    let products = error * up.0.abs() + open.abs() * up.1 + error * up.1;
    (value, b.fine().store(value, products + (value.abs() + products) * b.silu()))
}
