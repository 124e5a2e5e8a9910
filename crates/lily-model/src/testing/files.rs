//! The files of a random model: config, safetensors, index. Tests of bad checkpoints change a [`Draft`] and encode it.

use serde_json::{Map, Value, json};

use super::{
    Spec,
    tensors::{Contents, DraftTensor, tensors},
};
use crate::{Format, LayerKind, MemoryModel, checkpoint::PREFIX};

/// A checkpoint before it is bytes.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) config: Value,
    pub(crate) generation_config: Value,
    /// The tensors of each file.
    pub(crate) shards: Vec<Vec<DraftTensor>>,
    pub(crate) padded: bool,
}

impl Draft {
    pub(crate) fn of(spec: &Spec) -> Draft {
        Draft::with(spec, Contents::Random)
    }

    pub(super) fn with(spec: &Spec, contents: Contents) -> Draft {
        let tensors = tensors(spec, contents);
        let per_shard = tensors.len().div_ceil(spec.shards.max(1));
        Draft {
            config: config(spec),
            generation_config: json!({
                "do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "eos_token_id": spec.end_tokens,
            }),
            shards: tensors.chunks(per_shard).map(<[_]>::to_vec).collect(),
            padded: spec.padded,
        }
    }

    /// The name of a file.
    pub(crate) fn file_name(&self, shard: usize) -> String {
        match self.shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
        }
    }

    /// The index that names each tensor's file.
    pub(crate) fn index(&self) -> Value {
        let total: u64 = self.shards.iter().flatten().map(DraftTensor::size).sum();
        let weight_map: Map<String, Value> = self
            .shards
            .iter()
            .enumerate()
            .flat_map(|(i, shard)| {
                shard.iter().map(move |tensor| (tensor.name.clone(), self.file_name(i).into()))
            })
            .collect();
        json!({ "metadata": { "total_size": total }, "weight_map": weight_map })
    }

    pub(crate) fn encode(&self) -> MemoryModel {
        let mut files: Vec<_> = self
            .shards
            .iter()
            .enumerate()
            .map(|(i, shard)| {
                (self.file_name(i).into(), safetensors(header(shard), shard, self.padded).into())
            })
            .collect();
        if self.shards.len() > 1 {
            files.push(("model.safetensors.index.json".into(), self.index().to_string().into_bytes().into()));
        }
        MemoryModel {
            config_json: self.config.to_string().into_bytes().into(),
            generation_config_json: Some(self.generation_config.to_string().into_bytes().into()),
            files,
        }
    }
}

/// The header of a file that holds these tensors one after the other.
pub(crate) fn header(tensors: &[DraftTensor]) -> Map<String, Value> {
    let mut at = 0;
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "mlx" }))]);
    for tensor in tensors {
        let end = at + tensor.size();
        let entry =
            json!({ "dtype": tensor.element.name(), "shape": tensor.shape, "data_offsets": [at, end] });
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    header
}

/// A file of this header and these tensors' bytes. Unless `padded`, data starts at an odd byte.
pub(crate) fn safetensors(header: Map<String, Value>, tensors: &[DraftTensor], padded: bool) -> Vec<u8> {
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8) + usize::from(!padded), b' ');
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.append(&mut json);
    tensors.iter().for_each(|tensor| file.extend_from_slice(&tensor.bytes));
    file
}

fn config(spec: &Spec) -> Value {
    let sizes = &spec.geometry;
    let (attention, delta, moe) = (&sizes.attention, &sizes.delta, &sizes.moe);
    let layer_types: Vec<&str> = sizes
        .layers
        .iter()
        .map(|kind| match kind {
            LayerKind::Delta => "linear_attention",
            LayerKind::Attention => "full_attention",
        })
        .collect();
    let text = json!({
        "model_type": "qwen3_5_moe_text",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers.len(),
        "layer_types": layer_types,
        "vocab_size": sizes.vocab,
        // As a decimal number and not as the f32 widened, which would read 9.999999974752427e-7.
        "rms_norm_eps": sizes.rms_eps.to_string().parse::<f64>().unwrap_or_default(),
        "max_position_embeddings": sizes.max_context,
        "num_attention_heads": attention.query_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": attention.rope_theta,
            "partial_rotary_factor": attention.rotary_dim as f64 / attention.head_dim as f64,
        },
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv_taps,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_width,
        "shared_expert_intermediate_size": moe.shared_width,
        "hidden_act": "silu",
        "attn_output_gate": true,
        "attention_bias": false,
        "norm_topk_prob": true,
        "tie_word_embeddings": spec.tied,
        "eos_token_id": spec.end_tokens,
    });
    let mut config =
        if spec.wrapped { json!({ "model_type": "qwen3_5_moe", "text_config": text }) } else { text };
    config["quantization"] = quantization(spec);
    config
}

fn quantization(spec: &Spec) -> Value {
    let shown = |format: Format| json!({ "group_size": format.group, "bits": format.bits });
    let mut quantization = shown(spec.format);
    quantization["mode"] = "affine".into();
    let prefix = if spec.prefixed { PREFIX } else { "" };
    for tensor in tensors(spec, Contents::Hollow) {
        let name = tensor.name.strip_prefix(prefix).unwrap_or(&tensor.name);
        let Some(path) = name.strip_suffix(".scales") else { continue };
        let format = spec.format_of(path);
        if format != spec.format {
            quantization[format!("{prefix}{path}")] = shown(format);
        }
    }
    quantization
}
