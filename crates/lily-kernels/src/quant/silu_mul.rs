//! SwiGLU's own step, apart from the products before it.

use super::silu;
use crate::{Activation, Contract, Operand, Traffic};

/// `out[i] = SiLU(gate[i]) * up[i]`; on GPUs only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiluMul {
    /// Elements.
    pub len: usize,
}

impl SiluMul {
    /// gate, up, out activations `[len]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("gate").act(), Operand::read("up").act(), Operand::write("out").act()];

    /// Lengths that fill a threadgroup and lengths that do not.
    pub fn cases() -> Vec<Self> {
        [1, 3, 4, 512, 1025, 5000].map(|len| SiluMul { len }).to_vec()
    }

    /// The definition, in f64.
    pub fn reference(&self, gate: &[f64], up: &[f64]) -> Vec<f64> {
        gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect()
    }
}

impl Contract for SiluMul {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let bytes = activation.bytes() * self.len;
        vec![Traffic::read(bytes), Traffic::read(bytes), Traffic::written(bytes)]
    }

    fn flops(&self) -> u64 {
        5 * self.len as u64
    }
}
