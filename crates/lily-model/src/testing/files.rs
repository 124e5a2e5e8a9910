//! The files of a random model: config, safetensors, index. Tests of bad checkpoints change a [`Draft`] and encode it.

use serde_json::{Map, Value, json};

use super::{
    Spec,
    tensors::{Contents, DraftTensor, tensors},
};
use crate::{
    MemoryModel,
    checkpoint::{PREFIX, write},
    config,
};

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
        let tensors = tensors(spec, Contents::Random);
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
        write::file_name(shard, self.shards.len())
    }

    /// The index that names each tensor's file.
    pub(crate) fn index(&self) -> Value {
        let total = self.shards.iter().flatten().map(DraftTensor::size).sum();
        let tensors = self.shards.iter().enumerate();
        let names = tensors.flat_map(|(i, shard)| shard.iter().map(move |tensor| (tensor.name.as_str(), i)));
        write::index(names, self.shards.len(), total)
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
    write::header(tensors.iter().map(|t| (t.name.as_str(), t.element, t.shape.as_slice())))
}

/// A file of this header and these tensors' bytes. Unless `padded`, data starts at an odd byte.
pub(crate) fn safetensors(header: Map<String, Value>, tensors: &[DraftTensor], padded: bool) -> Vec<u8> {
    let blanks = |length: usize| length.next_multiple_of(8) - length + usize::from(!padded);
    let mut file = write::before_data(header, blanks);
    tensors.iter().for_each(|tensor| file.extend_from_slice(&tensor.bytes));
    file
}

fn config(spec: &Spec) -> Value {
    let mut text = config::write::architecture(&spec.geometry);
    text["tie_word_embeddings"] = spec.tied.into();
    text["eos_token_id"] = json!(spec.end_tokens);
    let mut config =
        if spec.wrapped { json!({ "model_type": "qwen3_5_moe", "text_config": text }) } else { text };
    config["quantization"] = quantization(spec);
    config
}

fn quantization(spec: &Spec) -> Value {
    let prefix = if spec.prefixed { PREFIX } else { "" };
    let matrices = tensors(spec, Contents::Hollow).into_iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(prefix).unwrap_or(&tensor.name);
        let path = name.strip_suffix(".scales")?;
        Some((format!("{prefix}{path}"), spec.format_of(path)))
    });
    config::write::quantization(spec.format, matrices)
}
