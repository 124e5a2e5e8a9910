//! The attention of a decode step in one launch.

use super::rows::{Packs, score_scale};
use super::{AttentionPrep, RowsOptions};
use super::{MOST_STEP_ROWS, ratio};
use crate::bindings::attend_step;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// [`AttentionPrep`] and [`super::Attend`] in one.
///
/// The rows of a slot have positions one after the other. A row attends to the cache before the slot's first row, and to the
/// new keys of the slot's rows up to itself, which are not read back from the cache: each threadgroup makes those that it
/// needs. One of them writes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendStep {
    /// Sizes, norms and RoPE.
    pub prep: AttentionPrep,
    /// How.
    pub options: RowsOptions,
}

impl AttendStep {
    /// qg act `[n, query_heads, 2, head_dim]`; k, v act `[n, kv_heads, head_dim]`; q_norm, k_norm `[head_dim]`; positions u32
    /// `[n]`; out act `[n, query_heads, head_dim]`; a slot's keys and values act `[context, kv_heads, head_dim]`, read before
    /// the slot's rows and written at them. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("out").fine(),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// An empty cache and a full one, one row and several, around a page.
    pub fn cases() -> Vec<Self> {
        step_shapes().into_iter().map(|(prep, options)| AttendStep { prep, options }).collect()
    }
}

/// Shapes of decode steps.
pub(super) fn step_shapes() -> Vec<(AttentionPrep, RowsOptions)> {
    use super::AttentionShape;
    let case = |slots, rows, query_heads, kv_heads, head_dim, rotary_dim, context, pack| {
        let prep = AttentionPrep {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            rotary_dim,
            rope_theta: 1e7,
            eps: 1e-6,
            q_norm: PlainType::Bf16,
            k_norm: PlainType::F32,
        };
        (prep, RowsOptions { pack, coalesced: true })
    };
    vec![
        case(1, 1, 16, 2, 256, 64, 200, 8),
        case(1, 4, 16, 2, 256, 64, 131, 8),
        case(1, 1, 16, 2, 256, 64, 1, 4),
        case(1, 1, 8, 1, 256, 64, 70, 2),
        case(1, 2, 8, 1, 256, 64, 66, 1),
        case(2, 3, 6, 2, 40, 20, 150, 1),
        case(1, 4, 3, 1, 33, 2, 4, 3),
        case(3, 1, 4, 2, 64, 64, 300, 2),
        case(2, 4, 5, 1, 18, 4, 67, 5),
    ]
}

/// Traffic of a cache of which a step reads what was there and writes the new rows.
pub(super) fn stepped(prep: &AttentionPrep, size: usize) -> Traffic {
    let s = &prep.shape;
    let old = s.cached() - s.new_keys();
    Traffic { read: (size * old) as u64, written: (size * s.new_keys()) as u64 }
}

impl Contract for AttendStep {
    fn slots(&self) -> usize {
        self.prep.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (p, s, size) = (&self.prep, &self.prep.shape, activation.bytes());
        let (q, kv, cache) = (size * s.queries(), size * s.new_keys(), stepped(p, size));
        vec![
            Traffic::read(2 * q),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * p.q_norm.bytes()),
            Traffic::read(s.head_dim * p.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
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
        let constants = attend_step::Constants {
            width: s.head_dim as u32,
            pack: packs.pack as u32,
            coalesced: self.options.coalesced,
            q_norm_is_f32: p.q_norm == PlainType::F32,
            k_norm_is_f32: p.k_norm == PlainType::F32,
        };
        let (ratio_high, ratio_low) = ratio(p.rope_theta, p.rotary_dim);
        let params = attend_step::Params {
            rows: s.rows as u32,
            kv_heads: s.kv_heads as u32,
            packs: packs.packs as u32,
            pairs: p.rotary_dim as u32 / 2,
            ratio_high,
            ratio_low,
            eps: p.eps,
            scale: score_scale(s.head_dim),
        };
        let grid = [s.rows * packs.packs, s.kv_heads, s.slots];
        let threads = [packs.threads, 1, 1];
        Some(Dispatch::new(&attend_step::TEXT, constants.words(), params.words(), grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for AttendStep {
    fn gpu_cases() -> Vec<Self> {
        let strided =
            |(prep, options)| AttendStep { prep, options: RowsOptions { coalesced: false, ..options } };
        AttendStep::cases().into_iter().chain(step_shapes().into_iter().step_by(2).map(strided)).collect()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{StepInputs, finished};
        use crate::testing::{Bounds, CaseBuilder, wide};
        let (b, s, d) = (Bounds::new(activation), &self.prep.shape, self.prep.shape.head_dim);
        let inputs = StepInputs::new(&self.prep, activation, random);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for i in 0..s.n() * s.query_heads {
            let sums = inputs.sums(&self.prep, b, i, 0..inputs.seen(i / s.query_heads));
            let gate = wide(&inputs.qg[(2 * i + 1) * d..][..d]);
            for (value, bound) in finished(b, &sums, &gate) {
                want.push(value);
                error.push(bound);
            }
        }
        inputs.build(CaseBuilder::new(*self, activation), want, error, s.slots == 1)
    }
}
