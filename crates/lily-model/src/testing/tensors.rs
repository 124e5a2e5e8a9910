//! The tensors of a random model, in the order in which MLX writes layers.

use lily_kernels::{bf16_bits, bf16_to_f32};

use super::{Spec, random::Random};
use crate::{ElementType, LayerKind, checkpoint::PREFIX};

/// A tensor before it is in a file. Tests of bad checkpoints change these.
#[derive(Clone, Debug)]
pub(crate) struct DraftTensor {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl DraftTensor {
    /// Bytes that type and shape need, whatever `bytes` holds.
    pub(crate) fn size(&self) -> u64 {
        self.element.bytes_of(&self.shape).unwrap_or_default()
    }
}

/// Whether to draw the weights.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Contents {
    Random,
    /// Names and shapes only; `bytes` stay empty.
    Hollow,
}

/// All tensors of `spec`.
pub(super) fn tensors(spec: &Spec, contents: Contents) -> Vec<DraftTensor> {
    let mut writer = Writer { spec, contents, random: Random::new(spec.seed), tensors: Vec::new() };
    writer.model();
    writer.tensors
}

struct Writer<'a> {
    spec: &'a Spec,
    contents: Contents,
    random: Random,
    tensors: Vec<DraftTensor>,
}

impl Writer<'_> {
    fn model(&mut self) {
        let sizes = &self.spec.geometry;
        let vocabulary = [sizes.vocab, sizes.hidden];
        self.matrix("model.embed_tokens", &vocabulary, (sizes.hidden as f64).sqrt());
        for (i, kind) in sizes.layers.iter().enumerate() {
            let path = format!("model.layers.{i}.");
            self.norm(&format!("{path}input_layernorm.weight"), sizes.hidden, 1.0);
            match kind {
                LayerKind::Delta => self.delta(&format!("{path}linear_attn.")),
                LayerKind::Attention => self.attention(&format!("{path}self_attn.")),
            }
            self.norm(&format!("{path}post_attention_layernorm.weight"), sizes.hidden, 1.0);
            self.moe(&format!("{path}mlp."));
        }
        self.norm("model.norm.weight", sizes.hidden, 1.0);
        if !self.spec.tied {
            self.matrix("lm_head", &vocabulary, 2.5);
        }
        if self.spec.extras {
            self.extra("vision_tower.blocks.0.norm1.weight");
            self.extra("mtp.norm.weight");
            self.extra("language_model.mtp.fc.weight");
        }
    }

    fn delta(&mut self, path: &str) {
        let (delta, hidden) = (&self.spec.geometry.delta, self.spec.geometry.hidden);
        let (channels, width, heads) = (delta.channels(), delta.value_width(), delta.value_heads);
        self.matrix(&format!("{path}in_proj_qkv"), &[channels, hidden], 1.0);
        self.matrix(&format!("{path}in_proj_z"), &[width, hidden], 1.0);
        self.matrix(&format!("{path}in_proj_b"), &[heads, hidden], 1.0);
        self.matrix(&format!("{path}in_proj_a"), &[heads, hidden], 1.0);
        self.matrix(&format!("{path}out_proj"), &[hidden, width], 1.2);
        let taps = self.values(channels * delta.conv_taps, |random| 0.5 * random.normal());
        self.vector(&format!("{path}conv1d.weight"), &[channels, delta.conv_taps, 1], &taps, false);
        // Decays exp(-A * softplus(a + dt_bias)) from about 0.1 to 0.9999.
        let a_log = self.values(heads, |random| random.uniform(0.05f64.ln(), 16f64.ln()));
        self.vector(&format!("{path}A_log"), &[heads], &a_log, true);
        let dt_bias = self.values(heads, |random| random.uniform(-6.0, -2.0));
        self.vector(&format!("{path}dt_bias"), &[heads], &dt_bias, false);
        self.norm(&format!("{path}norm.weight"), delta.value_dim, 1.0);
    }

    fn attention(&mut self, path: &str) {
        let (attention, hidden) = (&self.spec.geometry.attention, self.spec.geometry.hidden);
        let width = attention.query_heads * attention.head_dim;
        let kv_width = attention.kv_heads * attention.head_dim;
        self.matrix(&format!("{path}q_proj"), &[2 * width, hidden], 1.0);
        self.matrix(&format!("{path}k_proj"), &[kv_width, hidden], 1.0);
        self.matrix(&format!("{path}v_proj"), &[kv_width, hidden], 1.0);
        self.matrix(&format!("{path}o_proj"), &[hidden, width], 1.5);
        self.norm(&format!("{path}q_norm.weight"), attention.head_dim, 1.3);
        self.norm(&format!("{path}k_norm.weight"), attention.head_dim, 1.3);
    }

    fn moe(&mut self, path: &str) {
        let (moe, hidden) = (&self.spec.geometry.moe, self.spec.geometry.hidden);
        let (experts, width, shared) = (moe.experts, moe.expert_width, moe.shared_width);
        self.matrix(&format!("{path}gate"), &[experts, hidden], 2.0);
        self.matrix(&format!("{path}shared_expert_gate"), &[1, hidden], 1.0);
        self.matrix(&format!("{path}switch_mlp.gate_proj"), &[experts, width, hidden], 1.0);
        self.matrix(&format!("{path}switch_mlp.up_proj"), &[experts, width, hidden], 1.0);
        self.matrix(&format!("{path}switch_mlp.down_proj"), &[experts, hidden, width], 1.5);
        self.matrix(&format!("{path}shared_expert.gate_proj"), &[shared, hidden], 1.0);
        self.matrix(&format!("{path}shared_expert.up_proj"), &[shared, hidden], 1.0);
        self.matrix(&format!("{path}shared_expert.down_proj"), &[hidden, shared], 1.5);
    }

    /// A quantized matrix (or stack) whose elements have mean near 0 and standard deviation `gain / sqrt(inputs)`.
    fn matrix(&mut self, path: &str, shape: &[usize], gain: f64) {
        let format = self.spec.format_of(path);
        let [outer @ .., cols] = shape else { unreachable!("a matrix has two dimensions or more") };
        let rows: usize = outer.iter().product();
        assert!(cols.is_multiple_of(format.group), "{path}: {cols} inputs in groups of {}", format.group);
        // Uniform bits of a packed stream are uniform codes, whatever their width.
        let mut packed = vec![0; self.drawn(rows * cols * format.bits / 8)];
        self.random.fill(&mut packed);
        let top = f64::from((1u32 << format.bits) - 1);
        let scale = gain / (*cols as f64).sqrt() / ((top * top + 2.0 * top) / 12.0).sqrt();
        let groups = self.drawn(rows * cols / format.group);
        let scales: Vec<u16> = (0..groups)
            .map(|_| {
                let sign = if self.random.bits() & 1 == 0 { 1.0 } else { -1.0 };
                bf16_bits((sign * scale * self.random.uniform(0.75, 1.25)) as f32)
            })
            .collect();
        // Not exactly the middle of the codes, so that no symmetric shortcut gives the same numbers.
        let biases: Vec<u16> = scales
            .iter()
            .map(|scale| {
                let middle = top / 2.0 + self.random.uniform(-1.0, 1.0) * top / 15.0;
                bf16_bits((-f64::from(bf16_to_f32(*scale)) * middle) as f32)
            })
            .collect();
        let with_width = |width: usize| outer.iter().chain([&width]).map(|n| *n as u64).collect::<Vec<_>>();
        let (packed_shape, group_shape) =
            (with_width(cols * format.bits / 32), with_width(cols / format.group));
        self.push(&format!("{path}.weight"), ElementType::U32, packed_shape, packed);
        self.push(&format!("{path}.scales"), ElementType::BF16, group_shape.clone(), bytes_of(&scales));
        self.push(&format!("{path}.biases"), ElementType::BF16, group_shape, bytes_of(&biases));
    }

    /// How many of `count` values to draw.
    fn drawn(&self, count: usize) -> usize {
        if self.contents == Contents::Random { count } else { 0 }
    }

    fn norm(&mut self, name: &str, len: usize, mean: f64) {
        let values = self.values(len, |random| mean + 0.1 * random.normal());
        self.vector(name, &[len], &values, false);
    }

    fn values(&mut self, len: usize, mut value: impl FnMut(&mut Random) -> f64) -> Vec<f32> {
        (0..self.drawn(len)).map(|_| value(&mut self.random) as f32).collect()
    }

    fn vector(&mut self, name: &str, shape: &[usize], values: &[f32], always_f32: bool) {
        let shape = shape.iter().map(|n| *n as u64).collect();
        if always_f32 || self.spec.f32_vectors {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.push(name, ElementType::F32, shape, bytes);
        } else {
            let bits: Vec<u16> = values.iter().map(|x| bf16_bits(*x)).collect();
            self.push(name, ElementType::BF16, shape, bytes_of(&bits));
        }
    }

    fn push(&mut self, name: &str, element: ElementType, shape: Vec<u64>, bytes: Vec<u8>) {
        let prefix = if self.spec.prefixed { PREFIX } else { "" };
        self.tensors.push(DraftTensor { name: format!("{prefix}{name}"), element, shape, bytes });
    }

    /// A tensor that a text engine skips.
    fn extra(&mut self, name: &str) {
        let mut bytes = vec![0; 2 * 5];
        self.random.fill(&mut bytes);
        self.tensors.push(DraftTensor {
            name: name.to_owned(),
            element: ElementType::F16,
            shape: vec![5],
            bytes,
        });
    }
}

fn bytes_of(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
