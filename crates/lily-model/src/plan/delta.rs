//! The launches of a Gated DeltaNet mixer.

use lily_kernels::Element;
use lily_kernels::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan, DeltaStep, DeltaStream, Scan};
use lily_kernels::norm::GatedNorm;
use lily_kernels::quant::{GatedNormMatmul, Output};

use super::build::{Builder, format, matrix, plain, plain_type};
use super::{Buffer, GatedNormPlace, Phase, Switch, View};
use crate::{DeltaWeights, PlainTensor};

/// The products that a DeltaNet mixer starts from.
struct Inputs {
    raw: View,
    z: View,
    a: View,
    b: View,
}

impl Builder<'_> {
    /// x += out_proj(gated_norm(scan(conv(norm(x))))): adds to `x`, moves both states on.
    pub(super) fn delta(&mut self, w: &DeltaWeights, norm: &PlainTensor, layer: usize, x: &View) {
        let mut normed = None;
        let norm = self.norm_for("input_layernorm", norm, x, &mut normed);
        let labels: &[&'static str] = match w.in_proj {
            Some(_) => &["in_proj"],
            None => &["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"],
        };
        let matrices = [&w.qkv, &w.z, &w.a, &w.b];
        let views = self.project(labels, &matrices, w.in_proj.as_ref(), &norm, Output::Fine);
        let Ok([raw, z, a, b]) = <[View; 4]>::try_from(views) else { unreachable!("four matrices") };
        let inputs = Inputs { raw, z, a, b };

        let fused_conv = self.phase == Phase::Decode && self.has(Switch::FuseGdnConv);
        let fused_norm = self.by_rows() && self.has(Switch::FuseGdnNorm);
        let in_stage = fused_conv && fused_norm && self.profile.gated_norm == GatedNormPlace::Stage;
        let y = if fused_conv {
            self.delta_step(w, layer, &inputs, in_stage)
        } else if self.streams() {
            self.delta_stream(w, layer, &inputs)
        } else {
            self.delta_apart(w, layer, &inputs)
        };
        if in_stage {
            self.matmul_add("out_proj", &w.out, &y, x);
        } else if fused_norm && self.geometry.delta.value_heads <= GatedNormMatmul::MOST_HEADS {
            self.gated_norm_matmul(w, y, inputs.z, x);
        } else {
            let gated = self.gated_norm(w, y, inputs.z);
            self.matmul_add("out_proj", &w.out, &gated, x);
        }
    }

    fn states(&self, layer: usize) -> (Vec<View>, Vec<View>) {
        let d = &self.geometry.delta;
        let conv = self.per_slot(|slot| Buffer::ConvState { slot, layer }, d.conv_state_len(), Element::F32);
        let delta = self.per_slot(|slot| Buffer::DeltaState { slot, layer }, d.state_len(), Element::F32);
        (conv, delta)
    }

    /// Convolution, gates and recurrence of a decode step in one launch, with the gated norm if `gated`.
    fn delta_step(&mut self, w: &DeltaWeights, layer: usize, inputs: &Inputs, gated: bool) -> View {
        let d = self.geometry.delta.clone();
        let out = self.arena.take(self.total * d.value_width());
        let kernel = DeltaStep {
            slots: self.slots,
            rows: self.rows,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            taps: d.conv_taps,
            eps: self.geometry.rms_eps,
            gated,
            conv: plain_type(&w.conv),
            a_log: plain_type(&w.a_log),
            dt_bias: plain_type(&w.dt_bias),
            norm: plain_type(&w.norm),
        };
        let Inputs { raw, z, a, b } = inputs;
        let mut bindings = vec![raw.clone(), z.clone(), a.clone(), b.clone()];
        bindings.extend([&w.conv, &w.a_log, &w.dt_bias, &w.norm].map(plain));
        bindings.push(out.clone());
        let (conv, delta) = self.states(layer);
        bindings.extend(conv.into_iter().chain(delta));
        self.launch("delta_step", kernel, bindings);
        out
    }

    /// Whether prefill keeps what lies between convolution and recurrence on the chip.
    fn streams(&self) -> bool {
        let fuses = self.phase == Phase::Prefill && self.has(Switch::FuseGdnConv);
        fuses && self.scan() == Scan::Registers
    }

    /// Convolution, gates and recurrence of a prompt in one launch.
    fn delta_stream(&mut self, w: &DeltaWeights, layer: usize, inputs: &Inputs) -> View {
        let d = self.geometry.delta.clone();
        let y = self.arena.take(self.total * d.value_width());
        let kernel = DeltaStream {
            slots: self.slots,
            rows: self.rows,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            taps: d.conv_taps,
            conv: plain_type(&w.conv),
            a_log: plain_type(&w.a_log),
            dt_bias: plain_type(&w.dt_bias),
            scan: self.scan(),
        };
        let Inputs { raw, a, b, .. } = inputs;
        let mut bindings = vec![raw.clone(), a.clone(), b.clone()];
        bindings.extend([&w.conv, &w.a_log, &w.dt_bias].map(plain));
        bindings.push(y.clone());
        let (conv, delta) = self.states(layer);
        bindings.extend(conv.into_iter().chain(delta));
        self.launch("delta_stream", kernel, bindings);
        y
    }

    /// The same in launches of their own, without the gated norm; also the way of prefill.
    fn delta_apart(&mut self, w: &DeltaWeights, layer: usize, inputs: &Inputs) -> View {
        let d = self.geometry.delta.clone();
        let (slots, rows, channels, taps) = (self.slots, self.rows, d.channels(), d.conv_taps);
        let (conv_states, states) = self.states(layer);
        let Inputs { raw, a, b, .. } = inputs;

        let conv = self.arena.take(self.total * channels);
        let kernel = ConvSilu { slots, rows, channels, taps, weight: plain_type(&w.conv) };
        let mut bindings = vec![raw.clone(), plain(&w.conv), conv.clone()];
        bindings.extend(conv_states.iter().cloned());
        self.launch("conv1d", kernel, bindings);

        let q = self.arena.take(self.total * d.key_heads * d.key_dim);
        let k = self.arena.take(self.total * d.key_heads * d.key_dim);
        let kappa = self.arena.words(self.total * d.key_heads);
        let decay = self.arena.words(self.total * d.value_heads);
        let beta = self.arena.words(self.total * d.value_heads);
        let kernel = DeltaPrep {
            rows: self.total,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            a_log: plain_type(&w.a_log),
            dt_bias: plain_type(&w.dt_bias),
        };
        let (read, written) = ([conv.clone(), a.clone(), b.clone()], [&q, &k, &kappa, &decay, &beta]);
        let bindings = read.into_iter().chain([plain(&w.a_log), plain(&w.dt_bias)]);
        self.launch("qk_norm_and_gates", kernel, bindings.chain(written.into_iter().cloned()).collect());

        let mut bindings = vec![raw.clone()];
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
            method: self.scan(),
        };
        let mut bindings = vec![q, k, kappa, decay, beta, conv, y.clone()];
        bindings.extend(states);
        self.launch("delta_scan", kernel, bindings);
        y
    }

    fn scan(&self) -> Scan {
        match self.phase {
            _ if !self.has(Switch::GdnRegscan) => Scan::Memory,
            Phase::Prefill if self.has(Switch::GdnChunked) => Scan::Chunked,
            _ => Scan::Registers,
        }
    }

    fn gated_norm(&mut self, w: &DeltaWeights, y: View, z: View) -> View {
        let d = &self.geometry.delta;
        let (heads, width) = (d.value_heads, d.value_dim);
        let gated = self.arena.take(self.total * d.value_width());
        let eps = self.geometry.rms_eps;
        let kernel = GatedNorm { rows: self.total, heads, width, eps, weight: plain_type(&w.norm) };
        self.launch("gated_norm", kernel, vec![y, z, plain(&w.norm), gated.clone()]);
        gated
    }

    /// The gated norm in the prologue of out_proj.
    fn gated_norm_matmul(&mut self, w: &DeltaWeights, y: View, z: View, x: &View) {
        let d = &self.geometry.delta;
        let kernel = GatedNormMatmul {
            rows: self.total,
            outputs: w.out.rows,
            heads: d.value_heads,
            width: d.value_dim,
            eps: self.geometry.rms_eps,
            norm: plain_type(&w.norm),
            format: format(&w.out),
        };
        let [weight, scales, biases] = matrix(&w.out);
        let bindings = vec![y, z, plain(&w.norm), weight, scales, biases, x.clone()];
        self.launch("out_proj", kernel, bindings);
    }
}
