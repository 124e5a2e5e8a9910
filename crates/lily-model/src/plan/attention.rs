//! The launches of a gated attention mixer.

use lily_kernels::Element;
use lily_kernels::attention::{
    Attend, AttendBlocks, AttendCombine, AttendMethod, AttendStep, AttendStepBlocks, AttentionPrep,
    AttentionShape, CacheWrite, HeadNorm, Rope, RowsOptions, SplitQuery,
};
use lily_kernels::quant::Output;

use super::build::{Builder, plain, plain_type};
use super::{Buffer, Phase, Switch, View};
use crate::{AttentionWeights, PlainTensor};

/// The products that an attention mixer starts from, and the caches.
struct Inputs {
    qg: View,
    k: View,
    v: View,
    positions: View,
    keys: Vec<View>,
    values: Vec<View>,
}

impl Builder<'_> {
    /// x += o_proj(attend(norm(x))): adds to `x`, extends the cache.
    pub(super) fn attention(&mut self, w: &AttentionWeights, norm: &PlainTensor, layer: usize, x: &View) {
        let a = self.geometry.attention.clone();
        let mut normed = None;
        let norm = self.norm_for("input_layernorm", norm, x, &mut normed);
        let labels: &[&'static str] = match w.qkv {
            Some(_) => &["qkv_proj"],
            None => &["q_proj", "k_proj", "v_proj"],
        };
        let views = self.project(labels, &[&w.q, &w.k, &w.v], w.qkv.as_ref(), &norm, Output::Activation);
        let Ok([qg, k, v]) = <[View; 3]>::try_from(views) else { unreachable!("three matrices") };
        let cache_len = self.context * a.kv_heads * a.head_dim;
        let inputs = Inputs {
            qg,
            k,
            v,
            positions: self.per_row(Buffer::Positions),
            keys: self.per_slot(|slot| Buffer::Keys { slot, layer }, cache_len, Element::Activation),
            values: self.per_slot(|slot| Buffer::Values { slot, layer }, cache_len, Element::Activation),
        };
        let out = self.arena.take(self.total * a.query_heads * a.head_dim);
        let shape = self.attention_shape();
        let prep = AttentionPrep {
            shape,
            rotary_dim: a.rotary_dim,
            rope_theta: a.rope_theta,
            eps: self.geometry.rms_eps,
            q_norm: plain_type(&w.q_norm),
            k_norm: plain_type(&w.k_norm),
        };
        let blocks = self.blocks();
        if self.phase == Phase::Decode && self.has(Switch::FuseQkPrep) && self.fuses_attention() {
            self.attend_step(w, prep, blocks, &inputs, &out);
        } else {
            let q = if self.has(Switch::FuseQkPrep) {
                self.prep(w, prep, &inputs)
            } else {
                self.prep_apart(w, &prep, &inputs)
            };
            self.attend(shape, blocks, q, &inputs, &out);
        }
        self.matmul_add("o_proj", &w.o, &out, x);
    }

    fn attention_shape(&self) -> AttentionShape {
        let a = &self.geometry.attention;
        AttentionShape {
            slots: self.slots,
            rows: self.rows,
            query_heads: a.query_heads,
            kv_heads: a.kv_heads,
            head_dim: a.head_dim,
            context: self.context,
        }
    }

    /// The CPU device has preparation and attention apart only.
    fn fuses_attention(&self) -> bool {
        self.profile.experts == super::ExpertKernels::Gpu
    }

    /// Tokens of a block, if a decode step splits the context.
    fn blocks(&self) -> Option<usize> {
        let long = self.context > self.profile.block_attention_above;
        let splits = self.phase == Phase::Decode && self.has(Switch::BlockAttention) && long;
        splits.then_some(self.profile.attention_block)
    }

    fn options(&self) -> RowsOptions {
        let a = &self.geometry.attention;
        let pack = self.profile.pack(a.query_heads / a.kv_heads);
        RowsOptions { pack, coalesced: self.has(Switch::CoalescedKv) }
    }

    /// Preparation and attention of a decode step in one launch, in two with blocks.
    fn attend_step(
        &mut self,
        w: &AttentionWeights,
        prep: AttentionPrep,
        blocks: Option<usize>,
        inputs: &Inputs,
        out: &View,
    ) {
        let options = self.options();
        let Inputs { qg, k, v, positions, .. } = inputs;
        let norms = [&w.q_norm, &w.k_norm].map(plain);
        let mut bindings = vec![qg.clone(), k.clone(), v.clone()];
        bindings.extend(norms);
        bindings.push(positions.clone());
        let caches = inputs.keys.iter().chain(&inputs.values).cloned();
        match blocks {
            None => {
                bindings.push(out.clone());
                bindings.extend(caches);
                self.launch("attend_step", AttendStep { prep, options }, bindings);
            }
            Some(block) => {
                let partial = self.partial(prep.shape, block);
                bindings.push(partial.clone());
                bindings.extend(caches);
                self.launch("attend_step_blocks", AttendStepBlocks { prep, options, block }, bindings);
                self.combine_blocks(prep.shape, block, partial, inputs, out);
            }
        }
    }

    fn partial(&mut self, shape: AttentionShape, block: usize) -> View {
        let blocks = shape.context.div_ceil(block);
        self.arena.words(self.total * shape.query_heads * blocks * (shape.head_dim + 2))
    }

    fn combine_blocks(
        &mut self,
        shape: AttentionShape,
        block: usize,
        partial: View,
        inputs: &Inputs,
        out: &View,
    ) {
        let bindings = vec![partial, inputs.qg.clone(), inputs.positions.clone(), out.clone()];
        self.launch("attend_combine", AttendCombine { shape, block }, bindings);
    }

    fn prep(&mut self, w: &AttentionWeights, kernel: AttentionPrep, inputs: &Inputs) -> View {
        let q = self.arena.take(self.total * kernel.shape.query_heads * kernel.shape.head_dim);
        let Inputs { qg, k, v, positions, .. } = inputs;
        let norms = [&w.q_norm, &w.k_norm].map(plain);
        let mut bindings = vec![qg.clone(), k.clone(), v.clone()];
        bindings.extend(norms);
        bindings.extend([positions.clone(), q.clone()]);
        bindings.extend(inputs.keys.iter().chain(&inputs.values).cloned());
        self.launch("qk_norm_rope_and_cache", kernel, bindings);
        q
    }

    /// The pieces of [`AttentionPrep`], a launch each.
    fn prep_apart(&mut self, w: &AttentionWeights, prep: &AttentionPrep, inputs: &Inputs) -> View {
        let s = prep.shape;
        let (rows, head_dim) = (self.total, s.head_dim);
        let (q_len, k_len) = (rows * s.query_heads * head_dim, rows * s.kv_heads * head_dim);
        let q = self.arena.take(q_len);
        let kernel = SplitQuery { rows, heads: s.query_heads, head_dim };
        self.launch("split_query", kernel, vec![inputs.qg.clone(), q.clone()]);
        let mut turned = Vec::new();
        for (labels, heads, x, norm, len) in [
            (["q_norm", "q_rope"], s.query_heads, &q, &w.q_norm, q_len),
            (["k_norm", "k_rope"], s.kv_heads, &inputs.k, &w.k_norm, k_len),
        ] {
            let normed = self.arena.take(len);
            let kernel = HeadNorm { rows, heads, head_dim, eps: prep.eps, weight: plain_type(norm) };
            self.launch(labels[0], kernel, vec![x.clone(), plain(norm), normed.clone()]);
            let out = self.arena.take(len);
            let kernel =
                Rope { rows, heads, head_dim, rotary_dim: prep.rotary_dim, rope_theta: prep.rope_theta };
            self.launch(labels[1], kernel, vec![normed, inputs.positions.clone(), out.clone()]);
            turned.push(out);
        }
        let kernel =
            CacheWrite { slots: s.slots, rows: s.rows, kv_heads: s.kv_heads, head_dim, context: s.context };
        let caches = [("write_keys", &turned[1], &inputs.keys), ("write_values", &inputs.v, &inputs.values)];
        for (label, x, cache) in caches {
            let mut bindings = vec![x.clone(), inputs.positions.clone()];
            bindings.extend(cache.iter().cloned());
            self.launch(label, kernel, bindings);
        }
        turned.swap_remove(0)
    }

    /// Attention of prepared queries.
    fn attend(&mut self, shape: AttentionShape, blocks: Option<usize>, q: View, inputs: &Inputs, out: &View) {
        let caches = inputs.keys.iter().chain(&inputs.values).cloned();
        let Inputs { qg, positions, .. } = inputs;
        let options = self.options();
        if let Some(block) = blocks {
            let partial = self.partial(shape, block);
            let bindings = [q, positions.clone(), partial.clone()].into_iter().chain(caches).collect();
            self.launch("attend_blocks", AttendBlocks { shape, options, block }, bindings);
            return self.combine_blocks(shape, block, partial, inputs, out);
        }
        let method = match self.phase {
            Phase::Prefill => AttendMethod::Flash,
            Phase::Decode => AttendMethod::Rows(options),
        };
        let bindings = [q, qg.clone(), positions.clone(), out.clone()].into_iter().chain(caches).collect();
        self.launch("attend", Attend { shape, method }, bindings);
    }
}
