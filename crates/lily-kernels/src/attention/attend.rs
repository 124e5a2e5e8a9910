//! Causal softmax attention with an output gate.

use super::rows::{Packs, score_scale};
use super::{AttentionShape, MOST_HEAD_DIM};
use crate::bindings::{attend_flash, attend_rows};
use crate::quant::sigmoid;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// How a GPU attends. The CPU device has one way for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttendMethod {
    /// Tiles of rows and keys, for prompts.
    Flash,
    /// A row at a time, for decode.
    Rows(RowsOptions),
}

/// How kernels for few rows share out the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowsOptions {
    /// Query heads of a KV head that one threadgroup computes together, so that they share each row of keys and values: a
    /// divisor of `query_heads / kv_heads`.
    pub pack: usize,
    /// Neighbouring lanes read neighbouring elements of the cache; otherwise each lane walks a key of its own, a key's width
    /// away from its neighbour's.
    pub coalesced: bool,
}

/// out[r, i] = softmax(q[r, i] . keys[0 ..= p] / sqrt(head_dim)) values * sigmoid(gate[r, i]), where p is row r's position,
/// query head i reads KV head i / (query_heads / kv_heads), and the gate is the second half of head i of `qg`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attend {
    /// Sizes.
    pub shape: AttentionShape,
    /// How.
    pub method: AttendMethod,
}

impl Attend {
    /// q f32 `[n, query_heads, head_dim]`; qg f32 `[n, query_heads, 2, head_dim]`; positions u32 `[n]`; out f32 [n,
    /// query_heads, head_dim]; a slot's keys and values f32 `[context, kv_heads, head_dim]`. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("q").act(),
        Operand::read("qg").act(),
        Operand::read("positions").u32(),
        Operand::write("out").fine(),
        Operand::read("keys").act().per_slot(),
        Operand::read("values").act().per_slot(),
    ];

    /// The definition, in f64, of one row: q and gate `[query_heads, head_dim]`, keys and values of the positions it sees.
    pub fn reference_row(&self, q: &[f64], gate: &[f64], keys: &[f64], values: &[f64]) -> Vec<f64> {
        let (d, h, hkv) = (self.shape.head_dim, self.shape.query_heads, self.shape.kv_heads);
        let n = keys.len() / (hkv * d);
        let mut out = Vec::new();
        for i in 0..h {
            let kv = i / (h / hkv);
            let at = |x: &[f64], j: usize, e: usize| x[(j * hkv + kv) * d + e];
            let score =
                |j: usize| (0..d).map(|e| q[i * d + e] * at(keys, j, e)).sum::<f64>() / (d as f64).sqrt();
            let scores: Vec<f64> = (0..n).map(score).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = p.iter().sum();
            for e in 0..d {
                let mix: f64 = (0..n).map(|j| p[j] * at(values, j, e)).sum();
                out.push(mix / sum * sigmoid(gate[i * d + e]));
            }
        }
        out
    }

    /// Around a block of 64 keys, one row and many, one sequence and several; one to nine query heads that share a KV
    /// head, and head widths of whole vectors, of a vector and a rest, and of less than one.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context| Attend {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            method: AttendMethod::Flash,
        };
        vec![
            case(1, 1, 8, 1, 256, 1),
            case(1, 1, 8, 1, 256, 63),
            case(1, 1, 8, 1, 256, 65),
            case(3, 1, 4, 2, 64, 200),
            case(1, 17, 4, 2, 64, 130),
            case(1, 70, 6, 2, 40, 70),
            case(1, 3, 3, 3, 33, 300),
            case(1, 1, 1, 1, 8, 64),
            case(1, 20, 10, 2, 16, 129),
            case(2, 12, 9, 1, 48, 128),
            case(4, 1, 8, 1, 128, 64),
            case(1, 6, 9, 3, 5, 66),
            case(1, 30, 5, 1, 27, 70),
        ]
    }
}

impl Contract for Attend {
    fn slots(&self) -> usize {
        self.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let s = &self.shape;
        let q = activation.bytes() * s.queries();
        let cache = Traffic::read(activation.bytes() * s.cached());
        vec![Traffic::read(q), Traffic::read(q), Traffic::read(4 * s.n()), Traffic::written(q), cache, cache]
    }

    fn flops(&self) -> u64 {
        self.shape.attention_flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let s = &self.shape;
        match self.method {
            AttendMethod::Flash => {
                let group = s.query_heads / s.kv_heads;
                let constants = attend_flash::Constants { width: s.head_dim as u32, group: group as u32 };
                let params = attend_flash::Params {
                    rows: s.rows as u32,
                    kv_heads: s.kv_heads as u32,
                    scale: score_scale(s.head_dim),
                };
                let grid = [(s.rows * group).div_ceil(64), s.kv_heads, s.slots];
                let launch =
                    Dispatch::new(&attend_flash::TEXT, constants.words(), params.words(), grid, [256, 1, 1]);
                (s.head_dim <= MOST_HEAD_DIM).then_some(launch)
            }
            AttendMethod::Rows(options) => {
                let packs = Packs::new(s, options)?;
                let constants = attend_rows::Constants {
                    width: s.head_dim as u32,
                    pack: packs.pack as u32,
                    coalesced: options.coalesced,
                };
                let params = attend_rows::Params {
                    rows: s.rows as u32,
                    kv_heads: s.kv_heads as u32,
                    packs: packs.packs as u32,
                    scale: score_scale(s.head_dim),
                };
                let grid = [s.rows * packs.packs, s.kv_heads, s.slots];
                let threads = [packs.threads, 1, 1];
                Some(Dispatch::new(&attend_rows::TEXT, constants.words(), params.words(), grid, threads))
            }
        }
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Attend {
    fn gpu_cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, context, pack, coalesced| Attend {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            method: AttendMethod::Rows(RowsOptions { pack, coalesced }),
        };
        let mut cases: Vec<Attend> = [
            // One row of eight heads; a whole tile of rows and rows left over; keys that end in a tile, at its end and behind a
            // page; chunks behind a long cache, so that most tiles are whole; heads that fill no tile, no half, no vector.
            (1, 1, 8, 1, 256, 1),
            (1, 8, 16, 2, 256, 8),
            (1, 9, 8, 1, 256, 160),
            (2, 19, 16, 2, 256, 167),
            (1, 70, 2, 1, 128, 70),
            (2, 12, 9, 3, 64, 128),
            (1, 17, 4, 2, 64, 130),
            (1, 11, 6, 2, 40, 97),
            (1, 3, 3, 3, 33, 300),
            (1, 30, 5, 1, 27, 33),
            (3, 2, 1, 1, 200, 65),
            (1, 4, 2, 1, 5, 64),
        ]
        .into_iter()
        .map(|(slots, rows, query_heads, kv_heads, head_dim, context)| Attend {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            method: AttendMethod::Flash,
        })
        .collect();
        cases.extend([
            // Every number of heads that a simdgroup takes, with heads left over and in two groups; fewer keys than parts,
            // ragged steps, several pages; widths of whole vectors, of a vector and a rest, and of less than one.
            case(1, 1, 16, 2, 256, 1, 8, true),
            case(1, 1, 16, 2, 256, 131, 8, true),
            case(1, 1, 16, 2, 256, 63, 4, true),
            case(1, 1, 16, 2, 256, 64, 2, true),
            case(1, 1, 16, 2, 256, 200, 1, true),
            case(3, 1, 4, 2, 64, 150, 2, true),
            case(1, 4, 6, 2, 40, 70, 3, true),
            case(2, 3, 9, 1, 33, 129, 9, true),
            case(1, 2, 7, 1, 27, 300, 7, true),
            case(2, 2, 10, 2, 5, 66, 5, true),
            case(1, 1, 6, 1, 128, 77, 6, true),
            case(1, 1, 1, 1, 8, 513, 1, true),
            case(1, 1, 16, 2, 256, 131, 8, false),
            case(1, 2, 16, 2, 256, 300, 1, false),
            case(3, 1, 4, 2, 64, 150, 2, false),
            case(2, 3, 9, 1, 33, 129, 9, false),
            case(2, 2, 10, 2, 5, 66, 5, false),
        ]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Caches, Slack, finished, head_sums, positions};
        use crate::testing::{Bounds, CaseBuilder, wide};
        let (b, s, d) = (Bounds::new(activation), &self.shape, self.shape.head_dim);
        let slack = Slack { bounds: b, lanes: 32, tile: self.method == AttendMethod::Flash, q: 0.0 };
        let builder = CaseBuilder::new(*self, activation);
        // Every third case has scores that leave one key alone.
        let scale = if random.below(3) == 0 { 20.0 } else { 1.5 };
        let q = builder.rounded(&random.values(s.queries(), scale));
        let qg = builder.rounded(&random.values(2 * s.queries(), 3.0));
        let positions = positions(s, random);
        let seen = |row: usize| positions[row] as usize + 1;
        let tokens: Vec<usize> = (0..s.slots).map(|slot| seen((slot + 1) * s.rows - 1)).collect();
        let caches = Caches::new(s, &tokens, &tokens, activation, random);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for (i, q) in wide(&q).chunks(d).enumerate() {
            let (row, head) = (i / s.query_heads, i % s.query_heads);
            let (slot, len) = (row / s.rows, seen(row) * s.kv_heads * d);
            let kv = head / (s.query_heads / s.kv_heads);
            let (keys, values) = (&caches.keys[slot][..len], &caches.values[slot][..len]);
            let sums = head_sums(s, slack, q, kv, keys, values, |_| 0.0);
            let gate = wide(&qg[(2 * i + 1) * d..][..d]);
            for (value, bound) in finished(b, &sums, &gate) {
                want.push(value);
                error.push(bound);
            }
        }
        let builder = builder.input(&q).input(&qg).ids(&positions).output(want, error);
        let builder = builder.input(&caches.key_pool).input(&caches.value_pool).slots(&caches.pool.slots());
        if s.slots > 1 { builder.touches_less().build() } else { builder.build() }
    }
}
