//! The second half of attention over a long context: blocks of keys together.

use super::AttentionShape;
use super::MOST_HEAD_DIM;
use crate::bindings::attend_combine;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// Merges a row's blocks ([`super::AttendBlocks`], [`super::AttendStepBlocks`]) in their order, and multiplies by the sigmoid
/// of the gate, the second half of each head of `qg`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendCombine {
    /// Sizes.
    pub shape: AttentionShape,
    /// Keys of a block.
    pub block: usize,
}

impl AttendCombine {
    /// partial f32 `[n, query_heads, blocks, head_dim + 2]`; qg act `[n, query_heads, 2, head_dim]`; positions u32 `[n]`; out act
    /// `[n, query_heads, head_dim]`. n = slots * rows, blocks = ceil(context / block).
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("partial"),
        Operand::read("qg").act(),
        Operand::read("positions").u32(),
        Operand::write("out").fine(),
    ];

    /// One block and several, ragged and whole.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, block| AttendCombine {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            block,
        };
        vec![case(1, 1, 16, 2, 256, 200, 64), case(2, 3, 6, 2, 40, 150, 128)]
    }
}

impl Contract for AttendCombine {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let q = size * s.queries();
        vec![
            Traffic::read(4 * s.partial(self.block)),
            Traffic::read(q),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
        ]
    }

    fn flops(&self) -> u64 {
        2 * self.shape.partial(self.block) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let s = &self.shape;
        let constants = attend_combine::Constants { width: s.head_dim as u32 };
        let params = attend_combine::Params {
            query_heads: s.query_heads as u32,
            block: self.block as u32,
            blocks: s.context.div_ceil(self.block) as u32,
        };
        let grid = [s.n() * s.query_heads, 1, 1];
        let launch =
            Dispatch::new(&attend_combine::TEXT, constants.words(), params.words(), grid, [512, 1, 1]);
        (s.head_dim <= MOST_HEAD_DIM).then_some(launch)
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for AttendCombine {
    fn gpu_cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, block| AttendCombine {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            block,
        };
        vec![
            case(1, 1, 16, 2, 256, 64, 64),
            case(1, 1, 16, 2, 256, 1400, 64),
            case(2, 2, 6, 2, 40, 2000, 128),
            case(3, 1, 2, 1, 33, 40_000, 64),
            case(1, 4, 3, 1, 5, 66, 64),
        ]
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::positions;
        use crate::quant::sigmoid;
        use crate::testing::{Bounds, CaseBuilder};
        let (b, s, d) = (Bounds::new(activation), &self.shape, self.shape.head_dim);
        let positions = positions(s, random);
        let blocks = s.context.div_ceil(self.block);
        let mut partial = random.values(s.partial(self.block), 10.0);
        let qg: Vec<f32> = random.values(2 * s.queries(), 3.0);
        let store = crate::testing::Store::of(crate::Element::Activation, activation);
        let qg: Vec<f32> = qg.into_iter().map(|v| store.round(v)).collect();
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for (i, blocks_of) in partial.chunks_mut(blocks * (d + 2)).enumerate() {
            let count = positions[i / s.query_heads] as usize / self.block + 1;
            blocks_of[count * (d + 2)..].fill(f32::NAN);
            let block = |n: usize| n * (d + 2);
            for n in 0..count {
                let weight = &mut blocks_of[block(n) + d + 1];
                *weight = weight.abs() + 1.0;
            }
            let top = (0..count).map(|n| blocks_of[block(n) + d]).fold(f32::NEG_INFINITY, f32::max);
            let fade = |n: usize| (f64::from(blocks_of[block(n) + d]) - f64::from(top)).exp2();
            // The difference is rounded once, and then is an exponent.
            let relative = |n: usize| {
                let apart = f64::from(top - blocks_of[block(n) + d]);
                (apart + 2.0) * b.f32() + b.function() + b.sum(count + 16, 1)
            };
            let at = |n: usize, e: usize| f64::from(blocks_of[block(n) + e]);
            let weight: f64 = (0..count).map(|n| fade(n) * at(n, d + 1)).sum();
            let weight_error: f64 = (0..count).map(|n| fade(n) * at(n, d + 1) * relative(n)).sum();
            for e in 0..d {
                let gate = sigmoid(f64::from(qg[(2 * i + 1) * d + e]));
                let mean = (0..count).map(|n| fade(n) * at(n, e)).sum::<f64>() / weight;
                let moved: f64 = (0..count).map(|n| fade(n) * at(n, e).abs() * relative(n)).sum();
                let bound = (moved + mean.abs() * weight_error) / weight * gate;
                want.push(mean * gate);
                error.push(
                    b.fine().store(mean * gate, bound + (mean * gate).abs() * (b.function() + 4.0 * b.f32())),
                );
            }
        }
        let all = !partial.iter().any(|v| v.is_nan());
        let builder = CaseBuilder::new(*self, activation).input(&partial).input(&qg).ids(&positions);
        let builder = builder.output(want, error);
        if all { builder.build() } else { builder.touches_less().build() }
    }
}
