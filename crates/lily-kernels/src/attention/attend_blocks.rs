//! The first half of attention over a long context: blocks of keys apart.

use super::rows::{Packs, score_scale};
use super::{AttentionShape, RowsOptions};
use crate::bindings::attend_blocks;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// For each row, query head and block of `block` keys that begins at or before the row's position, what
/// [`super::AttendCombine`] merges: the sum of values weighted by e^(score - m), the largest score m, the sum of the weights.
/// Scores and m are scaled by log2(e), so that all exponentials are powers of two.
///
/// Blocks behind a row's position are neither written nor read: traffic is declared as at position `context - 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendBlocks {
    /// Sizes.
    pub shape: AttentionShape,
    /// How.
    pub options: RowsOptions,
    /// Keys of a block: a multiple of [`super::PAGE_TOKENS`].
    pub block: usize,
}

impl AttendBlocks {
    /// q act `[n, query_heads, head_dim]`; positions u32 `[n]`; partial f32 `[n, query_heads, blocks, head_dim + 2]`, blocks =
    /// ceil(context / block); a slot's keys and values act `[context, kv_heads, head_dim]`. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("q").act(),
        Operand::read("positions").u32(),
        Operand::write("partial"),
        Operand::read("keys").act().per_slot(),
        Operand::read("values").act().per_slot(),
    ];

    /// One block and several, ragged and whole.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, pack, block| AttendBlocks {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            options: RowsOptions { pack, coalesced: true },
            block,
        };
        vec![case(1, 1, 16, 2, 256, 200, 8, 64), case(2, 3, 6, 2, 40, 150, 1, 128)]
    }
}

impl Contract for AttendBlocks {
    fn slots(&self) -> usize {
        self.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let cache = Traffic::read(size * s.cached());
        vec![
            Traffic::read(size * s.queries()),
            Traffic::read(4 * s.n()),
            Traffic::written(4 * s.partial(self.block)),
            cache,
            cache,
        ]
    }

    fn flops(&self) -> u64 {
        self.shape.attention_flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let s = &self.shape;
        let packs = Packs::new(s, self.options)?;
        let constants = attend_blocks::Constants {
            width: s.head_dim as u32,
            pack: packs.pack as u32,
            coalesced: self.options.coalesced,
        };
        let blocks = s.context.div_ceil(self.block);
        let params = attend_blocks::Params {
            rows: s.rows as u32,
            kv_heads: s.kv_heads as u32,
            packs: packs.packs as u32,
            block: self.block as u32,
            blocks: blocks as u32,
            scale: score_scale(s.head_dim),
        };
        let grid = [s.rows * packs.packs, s.kv_heads * blocks, s.slots];
        let threads = [packs.threads, 1, 1];
        Some(Dispatch::new(&attend_blocks::TEXT, constants.words(), params.words(), grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for AttendBlocks {
    fn gpu_cases() -> Vec<Self> {
        let case =
            |slots, rows, query_heads, kv_heads, head_dim, context, pack, block, coalesced| AttendBlocks {
                shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
                options: RowsOptions { pack, coalesced },
                block,
            };
        vec![
            case(1, 1, 16, 2, 256, 200, 8, 64, true),
            case(1, 1, 8, 1, 256, 257, 4, 256, true),
            case(1, 1, 16, 2, 256, 130, 8, 128, false),
            // Rows on both sides of a block's end, and slots that end in an early block.
            case(2, 3, 6, 2, 40, 130, 3, 64, true),
            case(3, 2, 4, 2, 64, 400, 1, 128, true),
            case(1, 4, 5, 1, 33, 66, 5, 64, false),
            case(2, 1, 2, 1, 8, 512, 2, 64, true),
        ]
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Caches, Slack, head_sums, partial_of, positions};
        use crate::testing::{Bounds, CaseBuilder, wide};
        let (b, s, d) = (Bounds::new(activation), &self.shape, self.shape.head_dim);
        let slack = Slack { bounds: b, lanes: 32, tile: false, q: 0.0 };
        let builder = CaseBuilder::new(*self, activation);
        let scale = if random.below(3) == 0 { 20.0 } else { 1.5 };
        let q = builder.rounded(&random.values(s.queries(), scale));
        let positions = positions(s, random);
        let seen = |row: usize| positions[row] as usize + 1;
        let tokens: Vec<usize> = (0..s.slots).map(|slot| seen((slot + 1) * s.rows - 1)).collect();
        let caches = Caches::new(s, &tokens, &tokens, activation, random);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for (i, q) in wide(&q).chunks(d).enumerate() {
            let (row, head) = (i / s.query_heads, i % s.query_heads);
            let kv = head / (s.query_heads / s.kv_heads);
            let (keys, values) = (&caches.keys[row / s.rows], &caches.values[row / s.rows]);
            partial_of(s, self.block, seen(row), &mut want, &mut error, |keys_of| {
                let part = keys_of.start * s.kv_heads * d..keys_of.end * s.kv_heads * d;
                head_sums(s, slack, q, kv, &keys[part.clone()], &values[part], |_| 0.0)
            });
        }
        let everything = !want.iter().any(|v| v.is_nan());
        let builder = builder.input(&q).ids(&positions).output(want, error);
        let builder = builder.input(&caches.key_pool).input(&caches.value_pool).slots(&caches.pool.slots());
        if everything { builder.build() } else { builder.touches_less().build() }
    }
}
