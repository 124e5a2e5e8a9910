//! The launches of a gated attention mixer.

use lily_kernels::attention::{Attend, AttendMethod, AttentionPrep, AttentionShape};

use super::build::{Builder, plain, plain_type};
use super::{Buffer, View};
use crate::AttentionWeights;

impl Builder<'_> {
    /// x += o_proj(attend(normed)): reads `normed`, adds to `x`, extends the cache.
    pub(super) fn attention(&mut self, w: &AttentionWeights, layer: usize, normed: &View, x: &View) {
        let a = self.geometry.attention.clone();
        let shape = AttentionShape {
            slots: self.slots,
            rows: self.rows,
            query_heads: a.query_heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            context: self.context,
        };
        let qg = self.matmul("q_proj", &w.q, normed);
        let k = self.matmul("k_proj", &w.k, normed);
        let v = self.matmul("v_proj", &w.v, normed);
        let positions = View { buffer: Buffer::Positions, bytes: 0..4 * self.total };
        let cache_len = self.context * a.kv_heads * a.head_dim;
        let keys = self.per_slot(|slot| Buffer::Keys { slot, layer }, cache_len);
        let values = self.per_slot(|slot| Buffer::Values { slot, layer }, cache_len);

        let q = self.arena.take(self.total * a.query_heads * a.head_dim);
        let kernel = AttentionPrep {
            shape,
            rotary_dim: a.rotary_dim,
            rope_theta: a.rope_theta,
            eps: self.geometry.rms_eps,
            q_norm: plain_type(&w.q_norm),
            k_norm: plain_type(&w.k_norm),
        };
        let mut bindings =
            vec![qg.clone(), k, v, plain(&w.q_norm), plain(&w.k_norm), positions.clone(), q.clone()];
        bindings.extend(keys.iter().chain(&values).cloned());
        self.launch("qk_norm_rope_and_cache", kernel, bindings);

        let out = self.arena.take(self.total * a.query_heads * a.head_dim);
        let mut bindings = vec![q, qg, positions, out.clone()];
        bindings.extend(keys.into_iter().chain(values));
        self.launch("attend", Attend { shape, method: AttendMethod::Flash }, bindings);
        self.matmul_add("o_proj", &w.o, &out, x);
    }
}
