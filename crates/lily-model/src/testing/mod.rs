//! Small random checkpoints of any geometry and quantization, for tests (feature `testing`).
//!
//! The weights are scaled so that activations stay near 1 through any number of layers, group scales have both signs as
//! MLX's quantizer writes them, and DeltaNet decays run from short to long memory. The same [`Spec`] gives the same
//! bytes on one machine. What they make is known from a forward pass in f64 that has no plan.

pub mod checks;
mod files;
pub mod mutate;
pub mod oracle;
mod random;
mod reference;
mod specs;
mod tensors;

use std::{fs, io, path::Path};

use crate::{
    AttentionGeometry, DeltaGeometry, Format, Geometry, LayerKind, MemoryModel, Model, MoeGeometry, pack,
    synth::{Progress, SynthFiles, SynthFolder},
};
pub(crate) use files::Draft;
#[cfg(test)]
pub(crate) use files::{header, safetensors};
pub use random::Random;
pub use reference::{Reference, clear_prompt, reference};
pub use specs::{random_spec, random_tokens};
#[cfg(test)]
pub(crate) use tensors::DraftTensor;

/// What checkpoint to make. Start from [`Spec::tiny`] and change fields.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Every size.
    pub geometry: Geometry,
    /// Of every matrix without another format.
    pub format: Format,
    /// Of the routers and the shared experts' gates; 8 bits in groups of 64 in MLX's conversions.
    pub gates: Format,
    /// Formats of matrices whose path ends so (`"switch_mlp.down_proj"`, `"lm_head"`). The first that fits counts.
    pub overrides: Vec<(String, Format)>,
    /// Files; more than one come with an index.
    pub shards: usize,
    /// The config is the multimodal wrapper.
    pub wrapped: bool,
    /// Names carry `language_model.`.
    pub prefixed: bool,
    /// lm_head is the embedding.
    pub tied: bool,
    /// The header is padded so that tensors are aligned as far as their sizes allow; otherwise data starts at an odd
    /// byte.
    pub padded: bool,
    /// Tensors of a vision tower and of a draft head are there, to be skipped.
    pub extras: bool,
    /// Every vector is stored as f32; otherwise bf16, but for A_log.
    pub f32_vectors: bool,
    /// The config's `eos_token_id`.
    pub end_tokens: Vec<u32>,
    /// Another seed is another model.
    pub seed: u64,
}

impl Spec {
    /// A model of 3 layers (DeltaNet, attention, DeltaNet) in which all sizes differ where they may, about 100 kB.
    pub fn tiny() -> Spec {
        Spec {
            geometry: Geometry {
                hidden: 64,
                layers: vec![LayerKind::Delta, LayerKind::Attention, LayerKind::Delta],
                vocab: 200,
                rms_eps: 1e-6,
                attention: AttentionGeometry {
                    query_heads: 4,
                    kv_heads: 2,
                    head_dim: 32,
                    rotary_dim: 8,
                    rope_theta: 1e6,
                },
                delta: DeltaGeometry {
                    key_heads: 2,
                    value_heads: 4,
                    key_dim: 16,
                    value_dim: 32,
                    conv_taps: 4,
                },
                moe: MoeGeometry { experts: 6, top_k: 2, expert_width: 64, shared_width: 128 },
                max_context: 512,
            },
            format: Format { bits: 4, group: 64 },
            gates: Format { bits: 8, group: 64 },
            overrides: Vec::new(),
            shards: 1,
            wrapped: false,
            prefixed: true,
            tied: false,
            padded: false,
            extras: false,
            f32_vectors: false,
            end_tokens: vec![1],
            seed: 1,
        }
    }

    /// The format of a matrix, by its path without prefix.
    fn format_of(&self, path: &str) -> Format {
        let gate = path.ends_with("mlp.gate") || path.ends_with("mlp.shared_expert_gate");
        let fallback = if gate { self.gates } else { self.format };
        self.overrides
            .iter()
            .find(|(end, _)| path.ends_with(end.as_str()))
            .map_or(fallback, |(_, format)| *format)
    }
}

/// Writes a model folder: `config.json`, `generation_config.json` and the weights.
///
/// # Panics
/// If the spec is not a possible model (a matrix whose inputs are not whole groups).
pub fn write_checkpoint(folder: &Path, spec: &Spec) -> io::Result<()> {
    let files = memory_model(spec);
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), &files.config_json)?;
    if let Some(generation) = &files.generation_config_json {
        fs::write(folder.join("generation_config.json"), generation)?;
    }
    files.files.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name.as_ref()), bytes))
}

/// Packs a model folder into a new one ([`crate::pack`]).
pub fn pack_checkpoint(from: &Path, to: &Path) -> io::Result<()> {
    let model = Model::open(from).map_err(io::Error::other)?;
    let files = pack::files(&model, "of a test", pack::documents(from)?);
    let folder = SynthFolder::claim(to, false).map_err(io::Error::other)?;
    let progress = Progress { written: &|_| (), cancelled: &|| false };
    files.write(folder, 1, progress).map(|_| ())
}

/// Writes a model folder of any size that takes no room: the weights are holes in sparse files and read as zero.
pub fn write_hollow(folder: &Path, files: &SynthFiles) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    files.documents.iter().try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes))?;
    for shard in &files.shards {
        write_sparse(&folder.join(&shard.name), shard.start(), shard.bytes())?;
    }
    Ok(())
}

/// Writes a file that begins so and is a hole from there on.
pub fn write_sparse(path: &Path, start: &[u8], bytes: u64) -> io::Result<()> {
    fs::write(path, start)?;
    fs::OpenOptions::new().write(true).open(path)?.set_len(bytes)
}

/// The files of the model, in memory.
///
/// # Panics
/// If the spec is not a possible model (a matrix whose inputs are not whole groups).
pub fn memory_model(spec: &Spec) -> MemoryModel {
    Draft::of(spec).encode()
}

/// The model itself, in memory.
///
/// # Panics
/// If the spec is not a possible model.
pub fn model_in_memory(spec: &Spec) -> Model {
    match Model::from_memory(memory_model(spec)) {
        Ok(model) => model,
        Err(error) => panic!("the spec makes no valid model: {error}"),
    }
}
