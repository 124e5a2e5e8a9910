//! What a model costs: bytes by part, bytes that a generated token moves, memory at a context. Plain data for a command
//! to print or to write as JSON.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::{
    Checkpoint, Format, Geometry, LayerKind, LayerWeights, MixerWeights, Model, PlainTensor, QuantizedMatrix,
    TensorId, Weights,
};

/// A model's sizes and costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Its sizes, under the names of `config.json`.
    pub geometry: Sizes,
    /// Its formats, narrowest first.
    pub quantization: Vec<FormatUse>,
    /// Its files.
    pub files: Vec<FileSize>,
    /// Every tensor once, by part.
    pub parts: Vec<Part>,
    /// Parameters of the text model.
    pub parameters: Parameters,
    /// What a decode step moves for one sequence.
    pub token: TokenBytes,
    /// Memory for one sequence.
    pub memory: Memory,
    /// Ids that end a generation.
    pub end_tokens: Vec<u32>,
}

/// A model's sizes, under the names of `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "`Geometry` explains each")]
pub struct Sizes {
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    pub linear_attention_layers: usize,
    pub full_attention_layers: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub rotary_dim: usize,
    pub rope_theta: f64,
    pub linear_num_key_heads: usize,
    pub linear_num_value_heads: usize,
    pub linear_key_head_dim: usize,
    pub linear_value_head_dim: usize,
    pub linear_conv_kernel_dim: usize,
    pub num_experts: usize,
    pub num_experts_per_tok: usize,
    pub moe_intermediate_size: usize,
    pub shared_expert_intermediate_size: usize,
}

/// The matrices of one quantization format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatUse {
    /// Bits of a packed value.
    pub bits: usize,
    /// Inputs per scale and bias.
    pub group_size: usize,
    /// Matrices, a stack of experts counting as one.
    pub matrices: usize,
    /// Their parameters.
    pub parameters: u64,
    /// Their bytes, scales and biases included.
    pub bytes: u64,
}

/// A file of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSize {
    /// Its path, or its name where the model is in memory.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
}

/// Tensors that serve one purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Which.
    pub name: PartName,
    /// Their bytes in the checkpoint.
    pub bytes: u64,
    /// Bytes of them that a decode step of one sequence reads.
    pub bytes_per_token: u64,
    /// Their parameters.
    pub parameters: u64,
    /// Parameters of them that one token uses.
    pub active_parameters: u64,
}

/// The purposes that tensors serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartName {
    /// The token embedding; a token reads one row.
    Embedding,
    /// Projections of the Gated DeltaNet layers.
    DeltaProjections,
    /// Projections of the attention layers.
    AttentionProjections,
    /// Which experts a token uses.
    Routers,
    /// The experts; a token reads `num_experts_per_tok` of `num_experts`.
    RoutedExperts,
    /// The experts that every token uses, with the gates that scale them.
    SharedExperts,
    /// Norms, convolutions and other vectors.
    Vectors,
    /// The output projection. No bytes where it is the embedding, but it is read all the same.
    LmHead,
    /// Tensors that a text engine leaves alone: a vision tower, a draft head.
    Skipped,
}

/// Parameters of the text model; what is skipped does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// All.
    pub total: u64,
    /// Those that one token uses.
    pub active: u64,
}

/// Bytes that a decode step of one sequence moves at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenBytes {
    /// Weights read.
    pub weights: u64,
    /// DeltaNet state, read once and written once (f32).
    pub delta_state: u64,
    /// Convolution state: all rows read, one written (f32).
    pub conv_state: u64,
    /// Keys and values read for each token of context (f32).
    pub kv_per_context_token: u64,
}

impl TokenBytes {
    /// All of it after `context` tokens.
    pub fn at(&self, context: usize) -> u64 {
        self.weights + self.delta_state + self.conv_state + self.kv_per_context_token * context as u64
    }
}

/// Memory that one sequence of a given length needs, scratch aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Tokens.
    pub context: usize,
    /// Weights, mapped from the files; skipped tensors are never touched.
    pub weights: u64,
    /// Keys and values (f32).
    pub kv: u64,
    /// DeltaNet and convolution state (f32).
    pub state: u64,
    /// The sum.
    pub total: u64,
}

impl Inspection {
    /// Inspects a model; memory is given for one sequence of `context` tokens.
    pub fn of(model: &Model, context: usize) -> Inspection {
        let (sizes, checkpoint) = (&model.geometry, &model.checkpoint);
        let tally = Tally::of(sizes, &model.weights, checkpoint);
        let parts = tally.parts(checkpoint);
        let sum = |value: fn(&Part) -> u64| parts.iter().map(value).sum::<u64>();
        let text = |part: &&Part| part.name != PartName::Skipped;
        let weights = parts.iter().filter(text).map(|part| part.bytes).sum();
        let kv_per_context_token = sizes.kv_bytes_per_token(4) as u64;
        let (kv, state) = (kv_per_context_token * context as u64, sizes.recurrent_state_bytes() as u64);
        let delta_layers = sizes.count(LayerKind::Delta) as u64;
        Inspection {
            geometry: sizes_of(sizes),
            quantization: tally.formats.into_values().collect(),
            files: checkpoint
                .files()
                .map(|(path, bytes)| FileSize { path: path.to_owned(), bytes })
                .collect(),
            parameters: Parameters { total: sum(|p| p.parameters), active: sum(|p| p.active_parameters) },
            token: TokenBytes {
                weights: sum(|p| p.bytes_per_token),
                delta_state: delta_layers * 2 * 4 * sizes.delta.state_len() as u64,
                conv_state: delta_layers * 4 * (sizes.delta.conv_state_len() + sizes.delta.channels()) as u64,
                kv_per_context_token,
            },
            memory: Memory { context, weights, kv, state, total: weights + kv + state },
            end_tokens: model.end_tokens.clone(),
            parts,
        }
    }
}

/// Sums over a model's tensors.
struct Tally {
    parts: BTreeMap<PartName, Part>,
    formats: BTreeMap<Format, FormatUse>,
    used: HashSet<TensorId>,
}

/// How much of a matrix one token reads.
#[derive(Clone, Copy)]
enum Share {
    All,
    /// This many of this many.
    Of(usize, usize),
}

impl Share {
    fn of(self, whole: u64) -> u64 {
        match self {
            Share::All => whole,
            // Multiplied in 128 bits: a whole checkpoint times its experts may not fit 64.
            Share::Of(some, all) => (u128::from(whole) * some as u128 / all as u128) as u64,
        }
    }
}

impl Tally {
    fn of(sizes: &Geometry, weights: &Weights, checkpoint: &Checkpoint) -> Tally {
        let mut tally = Tally { parts: BTreeMap::new(), formats: BTreeMap::new(), used: HashSet::new() };
        tally.matrix(PartName::Embedding, &weights.embed, Share::Of(1, sizes.vocab));
        tally.matrix(PartName::LmHead, &weights.lm_head, Share::All);
        tally.vector(&weights.final_norm, checkpoint);
        for layer in &weights.layers {
            tally.layer(sizes, layer, checkpoint);
        }
        tally
    }

    fn layer(&mut self, sizes: &Geometry, layer: &LayerWeights, checkpoint: &Checkpoint) {
        let mut vectors = vec![&layer.input_norm, &layer.post_norm];
        match &layer.mixer {
            MixerWeights::Delta(delta) => {
                for matrix in [&delta.qkv, &delta.z, &delta.a, &delta.b, &delta.out] {
                    self.matrix(PartName::DeltaProjections, matrix, Share::All);
                }
                vectors.extend([&delta.conv, &delta.a_log, &delta.dt_bias, &delta.norm]);
            }
            MixerWeights::Attention(attention) => {
                for matrix in [&attention.q, &attention.k, &attention.v, &attention.o] {
                    self.matrix(PartName::AttentionProjections, matrix, Share::All);
                }
                vectors.extend([&attention.q_norm, &attention.k_norm]);
            }
        }
        let moe = &layer.moe;
        self.matrix(PartName::Routers, &moe.router, Share::All);
        for matrix in [&moe.gate, &moe.up, &moe.down] {
            self.matrix(PartName::RoutedExperts, matrix, Share::Of(sizes.moe.top_k, sizes.moe.experts));
        }
        for matrix in [&moe.shared_gate_proj, &moe.shared_up, &moe.shared_down, &moe.shared_gate] {
            self.matrix(PartName::SharedExperts, matrix, Share::All);
        }
        for vector in vectors {
            self.vector(vector, checkpoint);
        }
    }

    fn matrix(&mut self, name: PartName, matrix: &QuantizedMatrix, share: Share) {
        let (bytes, parameters) =
            (matrix.bytes() as u64, (matrix.experts * matrix.rows * matrix.cols) as u64);
        // A tied lm_head is read, but it is already counted as the embedding.
        let stored = self.used.insert(matrix.weight);
        self.used.extend([matrix.scales, matrix.biases]);
        let part = self.part(name);
        part.bytes_per_token += share.of(bytes);
        part.active_parameters += share.of(parameters);
        if !stored {
            return;
        }
        part.bytes += bytes;
        part.parameters += parameters;
        let format = Format { bits: matrix.bits, group: matrix.group };
        let entry = self.formats.entry(format).or_insert(FormatUse {
            bits: format.bits,
            group_size: format.group,
            matrices: 0,
            parameters: 0,
            bytes: 0,
        });
        entry.matrices += 1;
        entry.parameters += parameters;
        entry.bytes += bytes;
    }

    fn vector(&mut self, vector: &PlainTensor, checkpoint: &Checkpoint) {
        self.used.insert(vector.tensor);
        let bytes = checkpoint.info(vector.tensor).range.len() as u64;
        let part = self.part(PartName::Vectors);
        part.bytes += bytes;
        part.bytes_per_token += bytes;
        part.parameters += vector.len as u64;
        part.active_parameters += vector.len as u64;
    }

    fn part(&mut self, name: PartName) -> &mut Part {
        self.parts.entry(name).or_insert(Part {
            name,
            bytes: 0,
            bytes_per_token: 0,
            parameters: 0,
            active_parameters: 0,
        })
    }

    /// The parts in order, with what no role uses.
    fn parts(&self, checkpoint: &Checkpoint) -> Vec<Part> {
        let skipped: u64 = checkpoint
            .tensors()
            .filter(|(id, _)| !self.used.contains(id))
            .map(|(_, info)| info.range.len() as u64)
            .sum();
        let mut parts: Vec<Part> = self.parts.values().cloned().collect();
        if skipped > 0 {
            parts.push(Part {
                name: PartName::Skipped,
                bytes: skipped,
                bytes_per_token: 0,
                parameters: 0,
                active_parameters: 0,
            });
        }
        parts
    }
}

fn sizes_of(sizes: &Geometry) -> Sizes {
    let (attention, delta, moe) = (&sizes.attention, &sizes.delta, &sizes.moe);
    Sizes {
        hidden_size: sizes.hidden,
        num_hidden_layers: sizes.layers.len(),
        linear_attention_layers: sizes.count(LayerKind::Delta),
        full_attention_layers: sizes.count(LayerKind::Attention),
        vocab_size: sizes.vocab,
        max_position_embeddings: sizes.max_context,
        num_attention_heads: attention.query_heads,
        num_key_value_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        rotary_dim: attention.rotary_dim,
        rope_theta: attention.rope_theta,
        linear_num_key_heads: delta.key_heads,
        linear_num_value_heads: delta.value_heads,
        linear_key_head_dim: delta.key_dim,
        linear_value_head_dim: delta.value_dim,
        linear_conv_kernel_dim: delta.conv_taps,
        num_experts: moe.experts,
        num_experts_per_tok: moe.top_k,
        moe_intermediate_size: moe.expert_width,
        shared_expert_intermediate_size: moe.shared_width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Preset,
        synth::Synth,
        testing::{Spec, model_in_memory, write_hollow},
    };

    fn part(inspection: &Inspection, name: PartName) -> &Part {
        inspection.parts.iter().find(|part| part.name == name).unwrap()
    }

    /// A figure to three significant digits, in megabytes.
    fn megabytes(bytes: u64) -> String {
        let value = bytes as f64 / 1e6;
        format!(
            "{value:.*}",
            if value < 10.0 {
                2
            } else if value < 100.0 {
                1
            } else {
                0
            }
        )
    }

    /// A preset's checkpoint without its data, inspected.
    fn inspected(preset: &str, context: usize) -> Inspection {
        let folder = tempfile::tempdir().unwrap();
        let synth = Synth::new(Preset::named(preset).unwrap(), 0).unwrap();
        write_hollow(folder.path(), &synth.files(&[1], 5 << 30)).unwrap();
        let start = std::time::Instant::now();
        let model = Model::open(folder.path()).unwrap();
        assert!(start.elapsed().as_secs_f64() < 1.0, "opening took {:?}", start.elapsed());
        Inspection::of(&model, context)
    }

    #[test]
    fn the_real_model_costs_what_is_known_of_it() {
        let found = inspected("qwen3.6-35b-a3b", 262_144);
        let per_token = |name, layers| megabytes(part(&found, name).bytes_per_token / layers);
        assert_eq!(per_token(PartName::DeltaProjections, 30), "18.9");
        assert_eq!(per_token(PartName::AttentionProjections, 10), "15.3");
        assert_eq!(per_token(PartName::RoutedExperts, 40), "14.2");
        assert_eq!(per_token(PartName::SharedExperts, 40), "1.77");
        assert_eq!(per_token(PartName::Routers, 40), "0.56");
        assert_eq!(per_token(PartName::LmHead, 1), "286");
        assert_eq!(megabytes(found.token.weights), "1670");
        assert_eq!(megabytes(found.token.delta_state), "126");
        // 20 KiB in bf16.
        assert_eq!(found.token.kv_per_context_token, 40 * 1024);
        assert_eq!(found.parameters.total / 100_000_000, 346);
        assert_eq!(found.memory.kv, 40 * 1024 * 262_144);
        assert_eq!(found.memory.total, found.memory.weights + found.memory.kv + found.memory.state);
        assert_eq!(found.token.at(0) + 1000 * 40 * 1024, found.token.at(1000));
    }

    #[test]
    fn four_layers_and_a_small_vocabulary_cost_what_peers_are_compared_at() {
        let found = inspected("layer4", 4096);
        assert_eq!(megabytes(found.token.weights), "176");
        assert_eq!(megabytes(found.token.at(0)), "189");
        assert_eq!(megabytes(found.memory.weights), "1969");
        assert_eq!(megabytes(inspected("qwen3.6-35b-a3b", 1).memory.weights), "19509");
    }

    #[test]
    fn every_byte_of_the_checkpoint_is_in_one_part() {
        for (tied, extras) in [(false, false), (true, false), (false, true)] {
            let model = model_in_memory(&Spec { tied, extras, ..Spec::tiny() });
            let found = Inspection::of(&model, 100);
            let bytes: u64 = found.parts.iter().map(|part| part.bytes).sum();
            assert_eq!(bytes, model.checkpoint.total_bytes());
            assert_eq!(found.parts.iter().any(|part| part.name == PartName::Skipped), extras);
            let lm_head = part(&found, PartName::LmHead);
            assert_eq!(lm_head.bytes, if tied { 0 } else { model.weights.lm_head.bytes() as u64 });
            assert_eq!(lm_head.bytes_per_token, model.weights.lm_head.bytes() as u64);
            let embedding = part(&found, PartName::Embedding);
            assert_eq!(embedding.bytes_per_token * 200, model.weights.embed.bytes() as u64);
            let experts = part(&found, PartName::RoutedExperts);
            assert_eq!(experts.bytes_per_token * 3, experts.bytes);
            let quantized: u64 = found.quantization.iter().map(|format| format.bytes).sum();
            let vectors = part(&found, PartName::Vectors).bytes;
            let skipped = if extras { 30 } else { 0 };
            assert_eq!(quantized + vectors + skipped, bytes);
        }
    }

    #[test]
    fn it_is_json() {
        let found = Inspection::of(&model_in_memory(&Spec::tiny()), 100);
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["geometry"]["hidden_size"], 64);
        assert_eq!(json["parts"][0]["name"], "embedding");
        assert_eq!(json["quantization"][0]["bits"], 4);
        assert_eq!(json["memory"]["context"], 100);
    }
}
