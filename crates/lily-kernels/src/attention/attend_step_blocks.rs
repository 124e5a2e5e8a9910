//! The attention of a decode step over a long context: norms, RoPE, cache write, and blocks of keys apart.

use super::attend_step::{step_shapes, stepped};
use super::rows::{Packs, score_scale};
use super::{AttentionPrep, RowsOptions};
use super::{MOST_STEP_ROWS, ratio};
use crate::bindings::attend_step_blocks;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// [`AttentionPrep`] and [`super::AttendBlocks`] in one, under the rules of [`super::AttendStep`]: what is left to do is
/// [`super::AttendCombine`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendStepBlocks {
    /// Sizes, norms and RoPE.
    pub prep: AttentionPrep,
    /// How.
    pub options: RowsOptions,
    /// Keys of a block: a multiple of [`super::PAGE_TOKENS`].
    pub block: usize,
}

impl AttendStepBlocks {
    /// qg act `[n, query_heads, 2, head_dim]`, of which the queries are read; k, v act `[n, kv_heads, head_dim]`; q_norm, k_norm
    /// `[head_dim]`; positions u32 `[n]`; partial f32 `[n, query_heads, blocks, head_dim + 2]`, blocks = ceil(context / block);
    /// a slot's keys and values act `[context, kv_heads, head_dim]`, read before the slot's rows and written at them.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("partial"),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// Those of [`super::AttendStep`], in blocks.
    pub fn cases() -> Vec<Self> {
        let step = |(prep, options)| AttendStepBlocks { prep, options, block: 64 };
        step_shapes().into_iter().map(step).collect()
    }
}

impl Contract for AttendStepBlocks {
    fn slots(&self) -> usize {
        self.prep.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (p, s, size) = (&self.prep, &self.prep.shape, activation.bytes());
        let (kv, cache) = (size * s.new_keys(), stepped(p, size));
        vec![
            Traffic::read(size * s.queries()),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * p.q_norm.bytes()),
            Traffic::read(s.head_dim * p.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(4 * s.partial(self.block)),
            cache,
            cache,
        ]
    }

    fn flops(&self) -> u64 {
        self.prep.flops() + self.prep.shape.attention_flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let (p, s) = (&self.prep, &self.prep.shape);
        let packs = Packs::new(s, self.options).filter(|_| s.rows <= MOST_STEP_ROWS)?;
        let constants = attend_step_blocks::Constants {
            width: s.head_dim as u32,
            pack: packs.pack as u32,
            coalesced: self.options.coalesced,
            q_norm_is_f32: p.q_norm == PlainType::F32,
            k_norm_is_f32: p.k_norm == PlainType::F32,
        };
        let (ratio_high, ratio_low) = ratio(p.rope_theta, p.rotary_dim);
        let blocks = s.context.div_ceil(self.block);
        let params = attend_step_blocks::Params {
            rows: s.rows as u32,
            kv_heads: s.kv_heads as u32,
            packs: packs.packs as u32,
            block: self.block as u32,
            blocks: blocks as u32,
            pairs: p.rotary_dim as u32 / 2,
            ratio_high,
            ratio_low,
            eps: p.eps,
            scale: score_scale(s.head_dim),
        };
        let grid = [s.rows * packs.packs, s.kv_heads * blocks, s.slots];
        let threads = [packs.threads, 1, 1];
        Some(Dispatch::new(&attend_step_blocks::TEXT, constants.words(), params.words(), grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for AttendStepBlocks {
    fn gpu_cases() -> Vec<Self> {
        let strided = |k: Self| AttendStepBlocks {
            options: RowsOptions { coalesced: false, ..k.options },
            block: 128,
            ..k
        };
        let cases = AttendStepBlocks::cases();
        cases.iter().copied().chain(cases.iter().copied().step_by(2).map(strided)).collect()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{StepInputs, partial_of};
        use crate::testing::{Bounds, CaseBuilder};
        let (b, s) = (Bounds::new(activation), &self.prep.shape);
        let inputs = StepInputs::new(&self.prep, activation, random);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for i in 0..s.n() * s.query_heads {
            partial_of(s, self.block, inputs.seen(i / s.query_heads), &mut want, &mut error, |keys_of| {
                inputs.sums(&self.prep, b, i, keys_of)
            });
        }
        let all = s.slots == 1 && !want.iter().any(|v| v.is_nan());
        inputs.build(CaseBuilder::new(*self, activation), want, error, all)
    }
}
