//! Which tensors a random model has and how each is scaled.
//!
//! A matrix has elements of mean 0 and standard deviation `gain / sqrt(inputs)`, so that an input of size 1 becomes an
//! output of size `gain`. What a layer adds to the residual stream is divided by the square root of the number of layers:
//! the stream grows from 1 to about 1.4, and a token's own embedding stays its largest part. SiLU has a positive mean,
//! which would give all tokens a common direction and some experts most of the tokens; where a product with SiLU is
//! added to the stream its input is small, so that SiLU is nearly linear there.

use std::collections::HashMap;
use std::sync::Arc;

use lily_kernels::{bf16_bits, bf16_to_f32};

use super::Routing;
use super::contents::{Contents, HotRows, draw, key};
use crate::{
    AttentionWeights, DeltaWeights, ElementType, MixerWeights, MoeWeights, PlainTensor, Preset,
    QuantizedMatrix, TensorId, Weights, checkpoint::PREFIX,
};

/// A tensor of a random model.
#[derive(Clone, Debug)]
pub struct SynthTensor {
    /// Its id in [`super::Synth::weights`].
    pub id: TensorId,
    /// Its name in a checkpoint.
    pub name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// What its draws depend on.
    pub key: u64,
    /// Its elements, from the draws.
    pub contents: Contents,
}

impl SynthTensor {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        // No size that is accepted overflows.
        self.element.bytes_of(&self.shape).unwrap_or_default()
    }

    /// All of its bytes, made on all processors.
    pub(crate) fn all(&self) -> Vec<u8> {
        /// Bytes that a thread makes: more work than starting it.
        const PART: usize = 1 << 20;
        let mut bytes = vec![0; self.bytes() as usize];
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let part = bytes.len().div_ceil(threads).max(PART);
        std::thread::scope(|scope| {
            let mut parts = bytes.chunks_mut(part).enumerate();
            let first = parts.next();
            for (i, out) in parts {
                scope.spawn(move || self.fill((i * part) as u64, out));
            }
            if let Some((_, out)) = first {
                self.fill(0, out);
            }
        });
        bytes
    }

    /// Writes its bytes from `offset` on: all of `out`, which must not reach beyond the tensor.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        debug_assert!(offset + out.len() as u64 <= self.bytes(), "{}", self.name);
        self.contents.fill(self.key, offset, out);
    }
}

/// Magnitudes of scales, as a share of the middle one: SCALES / 2 of them evenly from 1 - SPREAD to 1 + SPREAD.
const SCALES: usize = 64;
const SPREAD: f64 = 0.25;
/// Where zero lies among a group's codes: around the middle, off by up to a 15th of their range, so that no shortcut for
/// symmetric codes gives the same numbers.
const OFFSETS: usize = 16;
const OFF_CENTRE: f64 = 1.0 / 15.0;
/// Of so many experts one is busy, with [`Routing::Skewed`]. With K busy ones of 256 whose logits spread four times as far, eight chosen, and
/// busy ones chosen for a quarter of the tokens (eight times the mean): the threshold is 0.674 deviations of theirs and 2.7 of the others',
/// so K / 4 + (256 - K) * 0.0035 = 8, and K = 29.
const HOT_EVERY: usize = 9;
/// Entries of a table of evenly spaced values.
const STEPS: usize = 256;

/// Every tensor, in the order of the files: by layer, as MLX writes them.
pub(super) fn tensors(preset: &Preset, weights: &Weights, seed: u64, routing: Routing) -> Vec<SynthTensor> {
    let hidden = preset.geometry.hidden as f64;
    let branch = 1.0 / (preset.geometry.layers.len() as f64).sqrt();
    let mut writer = Writer {
        seed,
        routing,
        branch,
        conv_taps: preset.geometry.delta.conv_taps,
        tensors: Vec::new(),
        tables: HashMap::new(),
    };
    // An embedding of size 1.
    writer.matrix("model.embed_tokens", &weights.embed, hidden.sqrt());
    for (i, layer) in weights.layers.iter().enumerate() {
        let path = format!("model.layers.{i}.");
        writer.norm(&format!("{path}input_layernorm.weight"), &layer.input_norm, 1.0);
        match &layer.mixer {
            MixerWeights::Delta(delta) => writer.delta(&format!("{path}linear_attn."), delta),
            MixerWeights::Attention(attention) => writer.attention(&format!("{path}self_attn."), attention),
        }
        writer.norm(&format!("{path}post_attention_layernorm.weight"), &layer.post_norm, 1.0);
        writer.moe(&format!("{path}mlp."), &layer.moe);
    }
    writer.norm("model.norm.weight", &weights.final_norm, 1.0);
    // Logits of standard deviation 2.5: some three nats below a uniform choice.
    writer.matrix("lm_head", &weights.lm_head, 2.5);
    writer.tensors
}

/// bf16 scales and biases.
type Tables = (Arc<[u16]>, Arc<[u16]>);

struct Writer {
    seed: u64,
    routing: Routing,
    /// What a layer's output is multiplied with.
    branch: f64,
    conv_taps: usize,
    tensors: Vec<SynthTensor>,
    /// Tables of scales and of biases by format and standard deviation (its bits).
    tables: HashMap<(usize, u64), Tables>,
}

impl Writer {
    fn delta(&mut self, path: &str, w: &DeltaWeights) {
        self.matrix(&format!("{path}in_proj_qkv"), &w.qkv, 1.0);
        // y has size 1 after its norm, SiLU(z) is about z / 2: out_proj sees 1/8.
        self.matrix(&format!("{path}in_proj_z"), &w.z, 0.25);
        self.matrix(&format!("{path}in_proj_b"), &w.b, 1.0);
        self.matrix(&format!("{path}in_proj_a"), &w.a, 1.0);
        self.matrix(&format!("{path}out_proj"), &w.out, 8.0 * 0.7 * self.branch);
        let channels = w.conv.len / self.conv_taps;
        let taps = uniform(-0.87, 0.87);
        self.vector(&format!("{path}conv1d.weight"), &w.conv, &[channels, self.conv_taps, 1], &taps);
        // Decays exp(-exp(A_log) * softplus(a + dt_bias)) from about 0.1 to 0.9999.
        self.vector(&format!("{path}A_log"), &w.a_log, &[w.a_log.len], &uniform(-3.0, 2.77));
        self.vector(&format!("{path}dt_bias"), &w.dt_bias, &[w.dt_bias.len], &uniform(-6.0, -2.0));
        self.norm(&format!("{path}norm.weight"), &w.norm, 1.0);
    }

    fn attention(&mut self, path: &str, w: &AttentionWeights) {
        self.matrix(&format!("{path}q_proj"), &w.q, 1.0);
        self.matrix(&format!("{path}k_proj"), &w.k, 1.0);
        self.matrix(&format!("{path}v_proj"), &w.v, 1.0);
        self.matrix(&format!("{path}o_proj"), &w.o, 1.5 * self.branch);
        // Scores of size 1.3 * 1.3: neither one token alone nor all alike.
        self.norm(&format!("{path}q_norm.weight"), &w.q_norm, 1.3);
        self.norm(&format!("{path}k_norm.weight"), &w.k_norm, 1.3);
    }

    fn moe(&mut self, path: &str, w: &MoeWeights) {
        let router = self.tensors.len();
        self.matrix(&format!("{path}gate"), &w.router, 2.0);
        if self.routing == Routing::Skewed {
            self.skew(router, &w.router);
        }
        self.matrix(&format!("{path}shared_expert_gate"), &w.shared_gate, 1.0);
        self.stack(&format!("{path}switch_mlp.gate_proj"), &w.gate, 1.0);
        self.stack(&format!("{path}switch_mlp.up_proj"), &w.up, 1.0);
        self.stack(&format!("{path}switch_mlp.down_proj"), &w.down, 1.5 * self.branch);
        self.matrix(&format!("{path}shared_expert.gate_proj"), &w.shared_gate_proj, 1.0);
        self.matrix(&format!("{path}shared_expert.up_proj"), &w.shared_up, 1.0);
        self.matrix(&format!("{path}shared_expert.down_proj"), &w.shared_down, 1.5 * self.branch);
    }

    /// Makes some rows of the router larger, others in each layer: scales and biases of the tensors from `from` on.
    fn skew(&mut self, from: usize, router: &QuantizedMatrix) {
        let width = router.cols / router.group;
        for tensor in &mut self.tensors[from..] {
            if let Contents::Bf16(table) = &tensor.contents {
                // Scales and biases have one key, so the same rows.
                let first = (draw(tensor.key, u64::MAX - 1) % HOT_EVERY as u64) as usize;
                tensor.contents =
                    Contents::Bf16Rows(table.clone(), HotRows { width, every: HOT_EVERY, first });
            }
        }
    }

    fn matrix(&mut self, path: &str, matrix: &QuantizedMatrix, gain: f64) {
        self.quantized(path, matrix, &[matrix.rows], gain);
    }

    fn stack(&mut self, path: &str, matrix: &QuantizedMatrix, gain: f64) {
        self.quantized(path, matrix, &[matrix.experts, matrix.rows], gain);
    }

    fn quantized(&mut self, path: &str, matrix: &QuantizedMatrix, outer: &[usize], gain: f64) {
        let shape = |width: usize| outer.iter().chain([&width]).map(|n| *n as u64).collect::<Vec<_>>();
        let (packed, groups) = (shape(matrix.cols * matrix.bits / 32), shape(matrix.cols / matrix.group));
        let deviation = gain / (matrix.cols as f64).sqrt();
        let (scales, biases) = self
            .tables
            .entry((matrix.bits, deviation.to_bits()))
            .or_insert_with(|| scales_and_biases(matrix.bits, deviation))
            .clone();
        // A group's bias belongs to its scale: both follow from the same draws.
        let of_groups = key(self.seed, &format!("{path}.scales"));
        let of_codes = key(self.seed, &format!("{path}.weight"));
        for (id, part, element, shape, key, contents) in [
            (matrix.weight, "weight", ElementType::U32, packed, of_codes, Contents::Bits),
            (matrix.scales, "scales", ElementType::BF16, groups.clone(), of_groups, Contents::Bf16(scales)),
            (matrix.biases, "biases", ElementType::BF16, groups, of_groups, Contents::Bf16(biases)),
        ] {
            let name = format!("{PREFIX}{path}.{part}");
            self.tensors.push(SynthTensor { id, name, element, shape, key, contents });
        }
    }

    fn norm(&mut self, name: &str, norm: &PlainTensor, mean: f64) {
        self.vector(name, norm, &[norm.len], &uniform(mean - 0.17, mean + 0.17));
    }

    fn vector(&mut self, name: &str, plain: &PlainTensor, shape: &[usize], values: &[f32]) {
        let (element, contents) = if plain.is_f32 {
            (ElementType::F32, Contents::F32(values.into()))
        } else {
            (ElementType::BF16, Contents::Bf16(values.iter().map(|x| bf16_bits(*x)).collect()))
        };
        self.tensors.push(SynthTensor {
            id: plain.tensor,
            name: format!("{PREFIX}{name}"),
            element,
            shape: shape.iter().map(|n| *n as u64).collect(),
            key: key(self.seed, name),
            contents,
        });
    }
}

/// Evenly spaced values around the middle of a range.
fn uniform(low: f64, high: f64) -> Vec<f32> {
    (0..STEPS).map(|i| (low + (high - low) * (i as f64 + 0.5) / STEPS as f64) as f32).collect()
}

/// Tables of bf16 scales and biases for codes of `bits` bits, so that weights have this standard deviation. The low bits
/// of an index choose the scale in both.
fn scales_and_biases(bits: usize, deviation: f64) -> Tables {
    let top = f64::from((1u32 << bits) - 1);
    // Of uniform codes from 0 to top.
    let of_codes = ((top * top + 2.0 * top) / 12.0).sqrt();
    let evenly = |i: usize, count: usize| (i as f64 + 0.5) / count as f64 * 2.0 - 1.0;
    let scale = |i: usize| {
        let size = deviation / of_codes * (1.0 + SPREAD * evenly(i / 2, SCALES / 2));
        bf16_bits(if i.is_multiple_of(2) { size } else { -size } as f32)
    };
    let scales: Arc<[u16]> = (0..SCALES).map(scale).collect();
    let bias = |i: usize| {
        let zero = top / 2.0 + evenly(i / SCALES, OFFSETS) * OFF_CENTRE * top;
        bf16_bits((-f64::from(bf16_to_f32(scales[i % SCALES])) * zero) as f32)
    };
    let biases = (0..SCALES * OFFSETS).map(bias).collect();
    (scales, biases)
}
