//! The launches of a Gated DeltaNet mixer.

use lily_kernels::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan, Scan};
use lily_kernels::norm::GatedNorm;

use super::build::{Builder, plain, plain_type};
use super::{Buffer, View};
use crate::DeltaWeights;

impl Builder<'_> {
    /// x += out_proj(gated_norm(scan(conv(normed)))): reads `normed`, adds to `x`, moves both states on.
    pub(super) fn delta(&mut self, w: &DeltaWeights, layer: usize, normed: &View, x: &View) {
        let d = self.geometry.delta.clone();
        let (slots, rows, channels, taps) = (self.slots, self.rows, d.channels(), d.conv_taps);
        let raw = self.matmul("in_proj_qkv", &w.qkv, normed);
        let z = self.matmul("in_proj_z", &w.z, normed);
        let a = self.matmul("in_proj_a", &w.a, normed);
        let b = self.matmul("in_proj_b", &w.b, normed);

        let conv = self.arena.take(self.total * channels);
        let conv_states = self.per_slot(|slot| Buffer::ConvState { slot, layer }, d.conv_state_len());
        let kernel = ConvSilu { slots, rows, channels, taps, weight: plain_type(&w.conv) };
        let mut bindings = vec![raw.clone(), plain(&w.conv), conv.clone()];
        bindings.extend(conv_states.iter().cloned());
        self.launch("conv1d", kernel, bindings);

        let q = self.arena.take(self.total * d.key_heads * d.key_dim);
        let k = self.arena.take(self.total * d.key_heads * d.key_dim);
        let kappa = self.arena.take(self.total * d.key_heads);
        let decay = self.arena.take(self.total * d.value_heads);
        let beta = self.arena.take(self.total * d.value_heads);
        let kernel = DeltaPrep {
            rows: self.total,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            a_log: plain_type(&w.a_log),
            dt_bias: plain_type(&w.dt_bias),
        };
        let (read, written) = ([conv.clone(), a, b], [&q, &k, &kappa, &decay, &beta]);
        let bindings = read.into_iter().chain([plain(&w.a_log), plain(&w.dt_bias)]);
        self.launch("qk_norm_and_gates", kernel, bindings.chain(written.into_iter().cloned()).collect());

        let mut bindings = vec![raw];
        bindings.extend(conv_states);
        self.launch("conv_state", ConvState { slots, rows, channels, taps }, bindings);

        let y = self.arena.take(self.total * d.value_width());
        let kernel = DeltaScan {
            slots,
            rows,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            method: Scan::Registers,
        };
        let mut bindings = vec![q, k, kappa, decay, beta, conv, y.clone()];
        bindings.extend(self.per_slot(|slot| Buffer::DeltaState { slot, layer }, d.state_len()));
        self.launch("delta_scan", kernel, bindings);

        let gated = self.arena.take(self.total * d.value_width());
        let kernel = GatedNorm {
            rows: self.total,
            heads: d.value_heads,
            width: d.value_dim,
            eps: self.geometry.rms_eps,
            weight: plain_type(&w.norm),
        };
        self.launch("gated_norm", kernel, vec![y, z, plain(&w.norm), gated.clone()]);
        self.matmul_add("out_proj", &w.out, &gated, x);
    }
}
