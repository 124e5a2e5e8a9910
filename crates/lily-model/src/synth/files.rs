//! A random model as a checkpoint: its files, of which any range can be made alone.

use std::fmt::Debug;
use std::io::{self, Write};
use std::ops::Range;

use serde_json::{Value, json};

use super::{Synth, SynthTensor};
use crate::checkpoint::{INDEX_FILE, PREFIX, write};
use crate::config;

/// The files of a checkpoint.
#[derive(Debug)]
pub struct SynthFiles<'a> {
    /// Small files by name: `config.json`, `generation_config.json`, the index where there are several shards.
    pub documents: Vec<(String, Vec<u8>)>,
    /// Files by name that are not so small.
    pub streamed: Vec<(String, Box<dyn Streamed + 'a>)>,
    /// The files of weights.
    pub shards: Vec<SynthFile<'a>>,
}

/// A file that is made while it is written.
pub trait Streamed: Debug {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Writes all of it.
    ///
    /// # Errors
    /// Those of the writer, at once.
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// A safetensors file.
#[derive(Debug)]
pub struct SynthFile<'a> {
    /// `model.safetensors`, or `model-00001-of-00004.safetensors`.
    pub name: String,
    /// Length and header. As MLX writes it, without padding: tensors start at any byte.
    start: Vec<u8>,
    tensors: &'a [SynthTensor],
    /// Where each tensor ends in the file.
    ends: Vec<u64>,
}

impl Synth {
    /// The checkpoint, in shards of at most `shard_bytes` unless a tensor alone is larger; `end_tokens` go into its
    /// configs.
    pub fn files(&self, end_tokens: &[u32], shard_bytes: u64) -> SynthFiles<'_> {
        let cuts = cuts(&self.tensors, shard_bytes);
        let count = cuts.len();
        let shards: Vec<SynthFile> = cuts
            .iter()
            .enumerate()
            .map(|(i, cut)| SynthFile::new(write::file_name(i, count), &self.tensors[cut.clone()]))
            .collect();
        let mut documents = vec![
            ("config.json".to_owned(), pretty(&self.config(end_tokens))),
            ("generation_config.json".to_owned(), pretty(&generation_config(end_tokens))),
        ];
        if count > 1 {
            let names = shards.iter().enumerate();
            let names = names.flat_map(|(i, shard)| shard.tensors.iter().map(move |t| (t.name.as_str(), i)));
            let index = write::index(names, count, self.total_bytes());
            documents.push((INDEX_FILE.to_owned(), pretty(&index)));
        }
        SynthFiles { documents, streamed: Vec::new(), shards }
    }

    /// `config.json`, with what other implementations ask for besides.
    fn config(&self, end_tokens: &[u32]) -> Value {
        let sizes = &self.preset.geometry;
        let mut text = config::write::architecture(sizes);
        text["full_attention_interval"] = 4.into();
        text["decoder_sparse_step"] = 1.into();
        text["tie_word_embeddings"] = false.into();
        let gates = (0..sizes.layers.len()).flat_map(|i| {
            ["gate", "shared_expert_gate"]
                .map(|gate| (format!("{PREFIX}model.layers.{i}.mlp.{gate}"), self.preset.gates))
        });
        json!({
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": text,
            "tie_word_embeddings": false,
            "eos_token_id": end_tokens,
            "quantization": config::write::quantization(self.preset.format, gates),
        })
    }
}

fn generation_config(end_tokens: &[u32]) -> Value {
    json!({ "do_sample": true, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "eos_token_id": end_tokens })
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Whole tensors one after the other, as many as fit.
fn cuts(tensors: &[SynthTensor], shard_bytes: u64) -> Vec<Range<usize>> {
    let (mut cuts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (i, tensor) in tensors.iter().enumerate() {
        if i > start && bytes + tensor.bytes() > shard_bytes {
            cuts.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += tensor.bytes();
    }
    cuts.push(start..tensors.len());
    cuts
}

impl<'a> SynthFile<'a> {
    fn new(name: String, tensors: &'a [SynthTensor]) -> Self {
        let header = write::header(tensors.iter().map(|t| (t.name.as_str(), t.element, t.shape.as_slice())));
        let start = write::before_data(header, |_| 0);
        let mut at = start.len() as u64;
        let end = |tensor: &SynthTensor| {
            at += tensor.bytes();
            at
        };
        let ends = tensors.iter().map(end).collect();
        SynthFile { name, start, tensors, ends }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(self.start.len() as u64)
    }

    /// What stands before the data: the header's length and the header.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Writes the file's bytes from `offset` on: all of `out`, which must not reach beyond the file.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        debug_assert!(offset + out.len() as u64 <= self.bytes(), "{}", self.name);
        let (mut offset, mut out) = (offset, out);
        if let Some(rest) = usize::try_from(offset).ok().and_then(|at| self.start.get(at..)) {
            let (part, after) = out.split_at_mut(rest.len().min(out.len()));
            part.copy_from_slice(&rest[..part.len()]);
            (offset, out) = (offset + part.len() as u64, after);
        }
        let first = self.ends.partition_point(|end| *end <= offset);
        for (tensor, end) in self.tensors[first..].iter().zip(&self.ends[first..]) {
            if out.is_empty() {
                break;
            }
            let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(out.len());
            let (part, after) = out.split_at_mut(len);
            tensor.fill(tensor.bytes() - (end - offset), part);
            (offset, out) = (*end, after);
        }
    }
}
