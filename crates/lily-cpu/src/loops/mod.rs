//! The inner loops, generic over the vector type, each always inlined into an entry compiled for one instruction set
//! ([`crate::simd::Loops`]).
//!
//! Rule for all of them: a result's bits depend on its own inputs and on sizes from the model, never on how many rows,
//! outputs or heads are computed in the same call.

pub(crate) mod attend;
pub(crate) mod delta;
pub(crate) mod gemm;
pub(crate) mod integer;
pub(crate) mod norm;
pub(crate) mod peak;
pub(crate) mod rounding;
