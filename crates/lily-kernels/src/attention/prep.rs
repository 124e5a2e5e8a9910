//! Norm, RoPE and the cache write.

use super::{AttentionShape, MOST_HEAD_DIM, frequency, ratio, turn};
use crate::bindings::attention_prep;
use crate::norm::normed;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// For each row: q = RoPE(RMSNorm(q; q_norm)) and k = RoPE(RMSNorm(k; k_norm)), k and v written to the cache at
/// `positions[row]`.
///
/// `qg` holds of each query head first q, then the gate (which [`super::Attend`] reads). RoPE turns the first
/// `rotary_dim` dimensions in half-split pairs (j, j + rotary_dim / 2) by the angle position * theta^(-2j / rotary_dim):
/// frequency and angle rounded to f32 as the oracle does, sine and cosine accurate for any angle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionPrep {
    /// Sizes.
    pub shape: AttentionShape,
    /// Leading dimensions that RoPE turns; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub rope_theta: f64,
    /// Epsilon of both norms.
    pub eps: f32,
    /// How q_norm is stored.
    pub q_norm: PlainType,
    /// How k_norm is stored.
    pub k_norm: PlainType,
}

impl AttentionPrep {
    /// qg f32 `[n, query_heads, 2, head_dim]`; k, v f32 `[n, kv_heads, head_dim]`; q_norm, k_norm `[head_dim]`; positions u32
    /// `[n]`; q f32 `[n, query_heads, head_dim]`; a slot's keys and values f32 `[context, kv_heads, head_dim]`, of which the
    /// rows at `positions` are written. n = slots * rows.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("qg").act(),
        Operand::read("k").act(),
        Operand::read("v").act(),
        Operand::read("q_norm").tensor(),
        Operand::read("k_norm").tensor(),
        Operand::read("positions").u32(),
        Operand::write("q").act(),
        Operand::update("keys").act().per_slot(),
        Operand::update("values").act().per_slot(),
    ];

    /// The inverse frequency of pair `j`, rounded to f32.
    pub fn frequency(&self, j: usize) -> f32 {
        frequency(self.rope_theta, self.rotary_dim, j)
    }

    fn turn(&self, x: &mut [f64], position: u32) {
        turn(x, position, self.rotary_dim, self.rope_theta);
    }

    /// The definition, in f64: (q `[n, query_heads, head_dim]`, k `[n, kv_heads, head_dim]`).
    pub fn reference(
        &self,
        qg: &[f64],
        k: &[f64],
        q_norm: &[f64],
        k_norm: &[f64],
        positions: &[u32],
    ) -> (Vec<f64>, Vec<f64>) {
        let (d, h, hkv) = (self.shape.head_dim, self.shape.query_heads, self.shape.kv_heads);
        let eps = f64::from(self.eps);
        let (mut q_out, mut k_out) = (Vec::new(), Vec::new());
        for (r, position) in positions.iter().enumerate() {
            for i in 0..h {
                let mut x = normed(&qg[(r * h + i) * 2 * d..][..d], q_norm, eps);
                self.turn(&mut x, *position);
                q_out.extend(x);
            }
            for i in 0..hkv {
                let mut x = normed(&k[(r * hkv + i) * d..][..d], k_norm, eps);
                self.turn(&mut x, *position);
                k_out.extend(x);
            }
        }
        (q_out, k_out)
    }

    /// Few and many heads, rotary parts of every share, several sequences, rows on both sides of a block of 64 tokens,
    /// positions up to 2.6e5.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, query_heads, kv_heads, head_dim, rotary_dim, context| AttentionPrep {
            shape: AttentionShape { slots, rows, query_heads, kv_heads, head_dim, context },
            rotary_dim,
            rope_theta: 1e7,
            eps: 1e-6,
            q_norm: PlainType::Bf16,
            k_norm: PlainType::F32,
        };
        vec![
            case(1, 1, 8, 1, 256, 64, 300),
            case(3, 1, 4, 2, 64, 16, 70),
            case(1, 9, 4, 2, 40, 40, 262_144),
            case(1, 5, 2, 2, 33, 2, 40),
            case(1, 66, 3, 1, 16, 8, 200_000),
            case(2, 3, 6, 3, 6, 4, 262_144),
        ]
    }
}

impl Contract for AttentionPrep {
    fn slots(&self) -> usize {
        self.shape.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (s, size) = (&self.shape, activation.bytes());
        let (q, kv) = (size * s.queries(), size * s.new_keys());
        vec![
            Traffic::read(q),
            Traffic::read(kv),
            Traffic::read(kv),
            Traffic::read(s.head_dim * self.q_norm.bytes()),
            Traffic::read(s.head_dim * self.k_norm.bytes()),
            Traffic::read(4 * s.n()),
            Traffic::written(q),
            Traffic::written(kv),
            Traffic::written(kv),
        ]
    }

    fn flops(&self) -> u64 {
        let s = &self.shape;
        (s.n() * (s.query_heads + s.kv_heads) * (4 * s.head_dim + 3 * self.rotary_dim)) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let s = &self.shape;
        let constants = attention_prep::Constants {
            q_norm_is_f32: self.q_norm == PlainType::F32,
            k_norm_is_f32: self.k_norm == PlainType::F32,
        };
        let (ratio_high, ratio_low) = ratio(self.rope_theta, self.rotary_dim);
        let params = attention_prep::Params {
            rows: s.rows as u32,
            query_heads: s.query_heads as u32,
            kv_heads: s.kv_heads as u32,
            width: s.head_dim as u32,
            pairs: self.rotary_dim as u32 / 2,
            ratio_high,
            ratio_low,
            eps: self.eps,
        };
        let grid = [s.n(), (s.query_heads + 2 * s.kv_heads).div_ceil(8), 1];
        let launch =
            Dispatch::new(&attention_prep::TEXT, constants.words(), params.words(), grid, [256, 1, 1]);
        (s.head_dim <= MOST_HEAD_DIM).then_some(launch)
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for AttentionPrep {
    fn gpu_cases() -> Vec<Self> {
        AttentionPrep::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::testing::{Pool, positions, prepared_error};
        use crate::testing::{Bounds, CaseBuilder, Store, plain, wide};
        let (b, s, d) = (Bounds::new(activation), &self.shape, self.shape.head_dim);
        let store = Store::of(crate::Element::Activation, activation);
        let mut act = |n: usize, scale: f32| -> Vec<f32> {
            random.values(n, scale).into_iter().map(|v| store.round(v)).collect()
        };
        let (qg, k, v) = (act(2 * s.queries(), 1.0), act(s.new_keys(), 1.0), act(s.new_keys(), 1.0));
        let (q_norm, q_values) = plain(random, self.q_norm, d, 1.3, 0.3);
        let (k_norm, k_values) = plain(random, self.k_norm, d, 1.3, 0.3);
        let positions = positions(s, random);
        let (q_want, k_want) = self.reference(&wide(&qg), &wide(&k), &q_values, &k_values, &positions);
        let stored = |want: &[f64]| -> Vec<f64> {
            want.iter().zip(prepared_error(self, b, want)).map(|(v, e)| b.store(*v, e)).collect()
        };
        let (q_error, k_error) = (stored(&q_want), stored(&k_want));
        let first = |slot: usize| positions[slot * s.rows] as usize;
        let tokens: Vec<_> = (0..s.slots).map(|slot| first(slot)..first(slot) + s.rows).collect();
        let pool = Pool::new(s, &tokens, random);
        let before = pool.empty();
        let (mut keys, mut keys_error) = (wide(&before), vec![0.0; before.len()]);
        let (mut values, values_error) = (wide(&before), vec![0.0; before.len()]);
        let new = s.rows * s.kv_heads * d;
        for slot in 0..s.slots {
            let of = |x: &[f64]| x[slot * new..][..new].to_vec();
            pool.fill(&mut keys, slot, first(slot), &of(&k_want));
            pool.fill(&mut keys_error, slot, first(slot), &of(&k_error));
            pool.fill(&mut values, slot, first(slot), &of(&wide(&v)));
        }
        let builder = CaseBuilder::new(*self, activation).input(&qg).input(&k).input(&v);
        let builder = builder.tensor(&q_norm).tensor(&k_norm).ids(&positions).output(q_want, q_error);
        let builder = builder.update(&before, keys, keys_error).update(&before, values, values_error);
        builder.slots(&pool.slots()).build()
    }
}
