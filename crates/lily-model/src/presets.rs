//! Models by name, without a checkpoint: sizes and formats, for plans and for synthetic weights.

use crate::config::Format;
use crate::synth::{SizeError, check_layers};
use crate::{
    AttentionGeometry, AttentionWeights, DeltaGeometry, DeltaWeights, Geometry, LayerKind, LayerWeights,
    MixerWeights, MoeGeometry, MoeWeights, PlainTensor, QuantizedMatrix, TensorId, Weights,
};

/// Sizes and formats of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// `qwen3.6-35b-a3b`.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Every size.
    pub geometry: Geometry,
    /// Of every matrix but the gates.
    pub format: Format,
    /// Of the routers and the shared experts' gates.
    pub gates: Format,
}

/// Three Gated DeltaNet layers, then one of attention, again and again.
fn layers(count: usize) -> Vec<LayerKind> {
    let kind = |i: usize| if i.is_multiple_of(4) { LayerKind::Attention } else { LayerKind::Delta };
    (1..=count).map(kind).collect()
}

impl Preset {
    fn qwen36(name: &'static str, about: &'static str, layer_count: usize, vocab: usize) -> Preset {
        Preset {
            name,
            about,
            geometry: Geometry {
                hidden: 2048,
                layers: layers(layer_count),
                vocab,
                rms_eps: 1e-6,
                attention: AttentionGeometry {
                    query_heads: 16,
                    kv_heads: 2,
                    head_dim: 256,
                    rotary_dim: 64,
                    rope_theta: 1e7,
                },
                delta: DeltaGeometry {
                    key_heads: 16,
                    value_heads: 32,
                    key_dim: 128,
                    value_dim: 128,
                    conv_taps: 4,
                },
                moe: MoeGeometry { experts: 256, top_k: 8, expert_width: 512, shared_width: 512 },
                max_context: 262_144,
            },
            format: Format { bits: 4, group: 64 },
            gates: Format { bits: 8, group: 64 },
        }
    }

    /// All of them.
    pub fn all() -> Vec<Preset> {
        let vocab = 248_320;
        vec![
            Preset::qwen36(
                "qwen3.6-35b-a3b",
                "Qwen3.6-35B-A3B as MLX quantizes it to 4 bits, 19.5 GB",
                40,
                vocab,
            ),
            Preset::qwen36("layer4", "four of its layers, a vocabulary of 32,768", 4, 32_768),
            Preset::qwen36("layer4-fullvocab", "four of its layers and its whole vocabulary", 4, vocab),
            Preset::qwen36("layer8", "eight of its layers, a vocabulary of 32,768", 8, 32_768),
        ]
    }

    /// The preset of a name.
    pub fn named(name: &str) -> Option<Preset> {
        Preset::all().into_iter().find(|p| p.name == name)
    }

    /// Gives it another number of layers, in the same order: three of Gated DeltaNet, one of attention.
    ///
    /// # Errors
    /// With a number that no model has.
    pub fn set_layers(&mut self, count: usize) -> Result<(), SizeError> {
        // Before a list of them is made.
        check_layers(count)?;
        self.geometry.layers = layers(count);
        Ok(())
    }

    /// Its tensors by role, under ids that belong to no checkpoint.
    pub fn weights(&self) -> Weights {
        let g = &self.geometry;
        let mut ids = Ids { next: 0, format: self.format };
        let embed = ids.matrix(1, g.vocab, g.hidden);
        let lm_head = ids.matrix(1, g.vocab, g.hidden);
        let final_norm = ids.vector(g.hidden);
        let layers = g.layers.iter().map(|kind| self.layer(*kind, &mut ids)).collect();
        Weights { embed, lm_head, final_norm, layers }
    }

    fn layer(&self, kind: LayerKind, ids: &mut Ids) -> LayerWeights {
        let g = &self.geometry;
        let (a, d, m) = (&g.attention, &g.delta, &g.moe);
        let input_norm = ids.vector(g.hidden);
        let mixer = match kind {
            LayerKind::Delta => MixerWeights::Delta(DeltaWeights {
                qkv: ids.matrix(1, d.channels(), g.hidden),
                z: ids.matrix(1, d.value_width(), g.hidden),
                a: ids.matrix(1, d.value_heads, g.hidden),
                b: ids.matrix(1, d.value_heads, g.hidden),
                conv: ids.vector(d.channels() * d.conv_taps),
                a_log: PlainTensor { is_f32: true, ..ids.vector(d.value_heads) },
                dt_bias: ids.vector(d.value_heads),
                norm: ids.vector(d.value_dim),
                out: ids.matrix(1, g.hidden, d.value_width()),
                in_proj: None,
            }),
            LayerKind::Attention => MixerWeights::Attention(AttentionWeights {
                q: ids.matrix(1, a.query_heads * 2 * a.head_dim, g.hidden),
                k: ids.matrix(1, a.kv_heads * a.head_dim, g.hidden),
                v: ids.matrix(1, a.kv_heads * a.head_dim, g.hidden),
                o: ids.matrix(1, g.hidden, a.query_heads * a.head_dim),
                q_norm: ids.vector(a.head_dim),
                k_norm: ids.vector(a.head_dim),
                qkv: None,
            }),
        };
        let gates = |ids: &mut Ids, rows| {
            let (bits, group) = (self.gates.bits, self.gates.group);
            QuantizedMatrix { bits, group, ..ids.matrix(1, rows, g.hidden) }
        };
        let moe = MoeWeights {
            router: gates(ids, m.experts),
            gate: ids.matrix(m.experts, m.expert_width, g.hidden),
            up: ids.matrix(m.experts, m.expert_width, g.hidden),
            down: ids.matrix(m.experts, g.hidden, m.expert_width),
            shared_gate_proj: ids.matrix(1, m.shared_width, g.hidden),
            shared_up: ids.matrix(1, m.shared_width, g.hidden),
            shared_down: ids.matrix(1, g.hidden, m.shared_width),
            shared_gate: gates(ids, 1),
            router_and_gate: None,
        };
        LayerWeights { input_norm, post_norm: ids.vector(g.hidden), mixer, moe }
    }
}

/// Hands out tensor ids.
struct Ids {
    next: u32,
    format: Format,
}

impl Ids {
    fn id(&mut self) -> TensorId {
        self.next += 1;
        TensorId(self.next - 1)
    }

    fn matrix(&mut self, experts: usize, rows: usize, cols: usize) -> QuantizedMatrix {
        let (weight, scales, biases) = (self.id(), self.id(), self.id());
        let Format { bits, group } = self.format;
        QuantizedMatrix { weight, scales, biases, experts, rows, cols, bits, group }
    }

    fn vector(&mut self, len: usize) -> PlainTensor {
        PlainTensor { tensor: self.id(), is_f32: false, len }
    }
}
