//! How products with quantized matrices round their activations.

/// Rounding of activations in products with quantized matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// float32: results agree with the reference to float32's own rounding.
    #[default]
    Exact,
    /// 16 bits and a scale for each group of inputs, so that products are of integers. Where experts are chosen, and
    /// in matrices of other than four bits, as [`Precision::Exact`].
    Fast,
}
