//! Keys or values into the cache.

use crate::bindings::cache_write;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// Writes x[slot * rows + r] to the cache of the slot's sequence at the row's position. Launched for keys and for values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheWrite {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Heads of a row.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of cache: an upper bound of every position + 1.
    pub context: usize,
}

impl CacheWrite {
    /// x act `[slots * rows, kv_heads, head_dim]`; positions u32 `[slots * rows]`; a slot's cache act [context, kv_heads,
    /// head_dim], of which the rows at `positions` are written.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("x").act(),
        Operand::read("positions").u32(),
        Operand::update("cache").act().per_slot(),
    ];

    /// One row and many, one sequence and several, around a page.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, kv_heads, head_dim, context| CacheWrite {
            slots,
            rows,
            kv_heads,
            head_dim,
            context,
        };
        vec![
            case(1, 1, 2, 256, 300),
            case(3, 2, 3, 33, 65),
            case(1, 70, 1, 16, 200_000),
            case(2, 1, 2, 64, 64),
        ]
    }
}

impl Contract for CacheWrite {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let n = self.slots * self.rows;
        let x = activation.bytes() * n * self.kv_heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(4 * n), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        0
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let units = self.slots * self.rows * self.kv_heads;
        let params = cache_write::Params {
            rows: self.rows as u32,
            heads: self.kv_heads as u32,
            width: self.head_dim as u32,
            units: units as u32,
        };
        let grid = [units.div_ceil(8), 1, 1];
        Some(Dispatch::new(&cache_write::TEXT, Vec::new(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for CacheWrite {
    fn gpu_cases() -> Vec<Self> {
        CacheWrite::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Pool, positions};
        use crate::testing::{CaseBuilder, wide};
        let CacheWrite { slots, rows, kv_heads, head_dim, context } = *self;
        let shape = super::AttentionShape { slots, rows, query_heads: kv_heads, kv_heads, head_dim, context };
        let builder = CaseBuilder::new(*self, activation);
        let x = builder.rounded(&random.values(slots * rows * kv_heads * head_dim, 2.0));
        let positions = positions(&shape, random);
        let first = |slot: usize| positions[slot * rows] as usize;
        let tokens: Vec<_> = (0..slots).map(|slot| first(slot)..first(slot) + rows).collect();
        let pool = Pool::new(&shape, &tokens, random);
        let before = pool.empty();
        let mut want = wide(&before);
        for (slot, new) in x.chunks(rows * kv_heads * head_dim).enumerate() {
            pool.fill(&mut want, slot, first(slot), &wide(new));
        }
        let error = vec![0.0; want.len()];
        builder.input(&x).ids(&positions).update(&before, want, error).slots(&pool.slots()).build()
    }
}
