//! A whole model in f64, layer after layer as its paper form goes, on top of the kernels' definitions. It knows neither
//! plans nor devices: a mistake in a plan cannot be in here too.

use lily_kernels::attention::{Attend, AttendMethod, AttentionPrep, AttentionShape};
use lily_kernels::delta::{ConvSilu, DeltaPrep, DeltaScan, Scan, ScanInputs};
use lily_kernels::moe::{Combine, ExpertDown, ExpertSwiglu, Route};
use lily_kernels::norm::{GatedNorm, RmsNorm};
use lily_kernels::quant::{Embed, Matmul, Method, Output, Quantized, Swiglu};
use lily_kernels::random::Random;
use lily_kernels::{PlainType, QuantFormat};

use super::random_tokens;
use crate::{AttentionWeights, DeltaWeights, MixerWeights, Model, MoeWeights, PlainTensor, QuantizedMatrix};

/// What a prompt makes of a model.
pub struct Reference {
    /// `[tokens, vocab]`.
    pub logits: Vec<f64>,
    /// For each Gated DeltaNet layer its number, S and conv state.
    pub states: Vec<(usize, Vec<f64>, Vec<f64>)>,
    /// The closest call between an expert that was chosen and one that was not, in routing logits.
    pub margin: f64,
    /// For each layer, how many of the tokens each expert was chosen for.
    pub loads: Vec<Vec<usize>>,
}

struct Run<'a> {
    model: &'a Model,
    tokens: usize,
    margin: f64,
    loads: Vec<Vec<usize>>,
}

/// Tokens whose experts are no closer call than `margin`, and what they make.
///
/// # Panics
/// If forty prompts have closer calls: the margin is too wide for the model.
pub fn clear_prompt(model: &Model, random: &mut Random, len: usize, margin: f64) -> (Vec<u32>, Reference) {
    for _ in 0..40 {
        let tokens = random_tokens(random, model, len);
        let want = reference(model, &tokens);
        if want.margin > margin {
            return (tokens, want);
        }
    }
    panic!("no prompt without close calls");
}

/// What these tokens make.
pub fn reference(model: &Model, tokens: &[u32]) -> Reference {
    let (w, g) = (&model.weights, &model.geometry);
    let mut run = Run { model, tokens: tokens.len(), margin: f64::INFINITY, loads: Vec::new() };
    let embed = Embed { rows: tokens.len(), vocab: g.vocab, width: g.hidden, format: format(&w.embed) };
    let (weight, scales, biases) = run.bytes(&w.embed);
    let mut x = embed.reference(tokens, weight, scales, biases);
    let mut states = Vec::new();
    for (i, layer) in w.layers.iter().enumerate() {
        let normed = run.norm(&layer.input_norm, &x);
        let mixed = match &layer.mixer {
            MixerWeights::Delta(w) => {
                let (mixed, s, conv) = run.delta(w, &normed);
                states.push((i, s, conv));
                mixed
            }
            MixerWeights::Attention(w) => run.attention(w, &normed),
        };
        x.iter_mut().zip(mixed).for_each(|(x, mixed)| *x += mixed);
        let normed = run.norm(&layer.post_norm, &x);
        x = run.moe(&layer.moe, &normed, x);
    }
    let normed = run.norm(&w.final_norm, &x);
    Reference { logits: run.matmul(&w.lm_head, &normed), states, margin: run.margin, loads: run.loads }
}

fn format(w: &QuantizedMatrix) -> QuantFormat {
    QuantFormat { bits: w.bits, group: w.group }
}

impl<'a> Run<'a> {
    fn bytes(&self, w: &QuantizedMatrix) -> Quantized<'a> {
        let bytes = |id| self.model.checkpoint.bytes(id);
        (bytes(w.weight), bytes(w.scales), bytes(w.biases))
    }

    fn plain(&self, w: &PlainTensor) -> Vec<f64> {
        let kind = if w.is_f32 { PlainType::F32 } else { PlainType::Bf16 };
        let bytes = self.model.checkpoint.bytes(w.tensor);
        (0..w.len).map(|i| f64::from(kind.get(bytes, i))).collect()
    }

    fn norm(&self, w: &PlainTensor, x: &[f64]) -> Vec<f64> {
        let (width, eps) = (self.model.geometry.hidden, self.model.geometry.rms_eps);
        RmsNorm { rows: self.tokens, width, eps, weight: PlainType::F32 }.reference(x, &self.plain(w))
    }

    fn matmul(&self, w: &QuantizedMatrix, x: &[f64]) -> Vec<f64> {
        let (rows, format) = (self.tokens, format(w));
        let kernel = Matmul::new(rows, w.rows, w.cols, format, Output::F32);
        let (weight, scales, biases) = self.bytes(w);
        kernel.reference(x, weight, scales, biases, &[])
    }

    /// The mixer's output, S and the conv state after the last token.
    fn delta(&self, w: &DeltaWeights, x: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let (d, rows) = (&self.model.geometry.delta, self.tokens);
        let (key_heads, value_heads) = (d.key_heads, d.value_heads);
        let (key_dim, value_dim, channels) = (d.key_dim, d.value_dim, d.channels());
        let raw = self.matmul(&w.qkv, x);
        let before = vec![0.0; (d.conv_taps - 1) * channels];
        let kernel = ConvSilu { slots: 1, rows, channels, taps: d.conv_taps, weight: PlainType::F32 };
        let conv = kernel.reference(&raw, &self.plain(&w.conv), &before);
        let all = [before, raw].concat();
        let conv_state = all[rows * channels..].to_vec();
        let (a_log, dt_bias) = (PlainType::F32, PlainType::F32);
        let prep = DeltaPrep { rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias }.reference(
            &conv,
            &self.matmul(&w.a, x),
            &self.matmul(&w.b, x),
            &self.plain(&w.a_log),
            &self.plain(&w.dt_bias),
        );
        let mut state = vec![0.0; value_heads * value_dim * key_dim];
        let inputs = ScanInputs { q: &prep.q, k: &prep.k, decay: &prep.decay, beta: &prep.beta, conv: &conv };
        let method = Scan::Registers;
        let y = DeltaScan { slots: 1, rows, key_heads, value_heads, key_dim, value_dim, method }
            .reference(inputs, &mut state);
        let (eps, weight) = (self.model.geometry.rms_eps, PlainType::F32);
        let gated = GatedNorm { rows, heads: value_heads, width: value_dim, eps, weight }.reference(
            &y,
            &self.matmul(&w.z, x),
            &self.plain(&w.norm),
        );
        (self.matmul(&w.out, &gated), state, conv_state)
    }

    fn attention(&self, w: &AttentionWeights, x: &[f64]) -> Vec<f64> {
        let a = &self.model.geometry.attention;
        let (d, heads) = (a.head_dim, a.query_heads);
        let shape = AttentionShape {
            slots: 1,
            rows: self.tokens,
            query_heads: heads,
            kv_heads: a.kv_heads,
            head_dim: d,
            context: self.tokens,
        };
        let prep = AttentionPrep {
            shape,
            rotary_dim: a.rotary_dim,
            rope_theta: a.rope_theta,
            eps: self.model.geometry.rms_eps,
            q_norm: PlainType::F32,
            k_norm: PlainType::F32,
        };
        let positions: Vec<u32> = (0..self.tokens as u32).collect();
        let (qg, k, v) = (self.matmul(&w.q, x), self.matmul(&w.k, x), self.matmul(&w.v, x));
        let (q, k) = prep.reference(&qg, &k, &self.plain(&w.q_norm), &self.plain(&w.k_norm), &positions);
        let mut out = Vec::new();
        for t in 0..self.tokens {
            let qg = &qg[t * heads * 2 * d..][..heads * 2 * d];
            let gate: Vec<f64> = qg.chunks(2 * d).flat_map(|head| &head[d..]).copied().collect();
            let seen = (t + 1) * a.kv_heads * d;
            let q = &q[t * heads * d..][..heads * d];
            out.extend(Attend { shape, method: AttendMethod::Flash }.reference_row(
                q,
                &gate,
                &k[..seen],
                &v[..seen],
            ));
        }
        self.matmul(&w.o, &out)
    }

    /// x and the experts' part.
    fn moe(&mut self, w: &MoeWeights, normed: &[f64], x: Vec<f64>) -> Vec<f64> {
        let (g, rows) = (&self.model.geometry, self.tokens);
        let (experts, top_k, hidden) = (g.moe.experts, g.moe.top_k, g.hidden);
        let logits = self.matmul(&w.router, normed);
        let (ids, weights) = Route { rows, experts, top_k }.reference(&logits);
        let load = |e: usize| ids.iter().filter(|id| **id as usize == e).count();
        self.loads.push((0..experts).map(load).collect());
        for (logits, ids) in logits.chunks(experts).zip(ids.chunks(top_k)) {
            let chosen = ids.iter().map(|e| logits[*e as usize]).fold(f64::INFINITY, f64::min);
            let others = (0..experts).filter(|e| !ids.contains(&(*e as u32)));
            let next = others.map(|e| logits[e]).fold(f64::NEG_INFINITY, f64::max);
            self.margin = self.margin.min(chosen - next);
        }
        let swiglu = ExpertSwiglu {
            rows,
            experts,
            top_k,
            outputs: g.moe.expert_width,
            inputs: hidden,
            gate: format(&w.gate),
            up: format(&w.up),
        };
        let act = swiglu.reference(normed, &ids, self.bytes(&w.gate), self.bytes(&w.up));
        let inputs = g.moe.expert_width;
        let down = ExpertDown { rows, experts, top_k, outputs: hidden, inputs, format: format(&w.down) };
        let out = down.reference(&act, &ids, self.bytes(&w.down));
        let shared = Swiglu {
            rows,
            outputs: g.moe.shared_width,
            inputs: hidden,
            gate: format(&w.shared_gate_proj),
            up: format(&w.shared_up),
            method: Method::Tiles,
        };
        let act = shared.reference(normed, self.bytes(&w.shared_gate_proj), self.bytes(&w.shared_up));
        let shared = self.matmul(&w.shared_down, &act);
        let gate = self.matmul(&w.shared_gate, normed);
        Combine { rows, top_k, width: hidden, weighted: true }.reference(&out, &weights, &shared, &gate, &x)
    }
}
