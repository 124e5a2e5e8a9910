//! SwiGLU's own step, apart from the products before it.

use super::silu;
use crate::bindings::silu_mul;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// `out[i] = SiLU(gate[i]) * up[i]`; on GPUs only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiluMul {
    /// Elements.
    pub len: usize,
}

impl SiluMul {
    /// gate, up, out activations `[len]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("gate").fine(), Operand::read("up").fine(), Operand::write("out").fine()];

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

    fn dispatch(&self) -> Option<Dispatch> {
        let params = silu_mul::Params { len: self.len as u32 };
        let grid = [self.len.div_ceil(4 * 256), 1, 1];
        Some(Dispatch::new(&silu_mul::TEXT, Vec::new(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for SiluMul {
    fn gpu_cases() -> Vec<Self> {
        SiluMul::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, wide};
        let b = Bounds::new(activation);
        let builder = CaseBuilder::new(*self, activation);
        // Some gates closed and some open altogether.
        let (mut gate, mut up) = (random.values(self.len, 20.0), random.values(self.len, 2.0));
        // And products beyond half's range, at both ends.
        (gate[0], up[0]) = (512.0, -1024.0);
        (gate[self.len - 1], up[self.len - 1]) = (512.0, 1024.0);
        let (gate, up) = (builder.rounded(&gate), builder.rounded(&up));
        let range = if activation == Activation::F32 { f64::MAX } else { 65504.0 };
        let want = self.reference(&wide(&gate), &wide(&up)).into_iter().map(|v| v.clamp(-range, range));
        let want: Vec<f64> = want.collect();
        let error = want.iter().map(|v| b.fine().store(*v, v.abs() * b.silu())).collect();
        builder.input(&gate).input(&up).output(want, error).build()
    }
}
