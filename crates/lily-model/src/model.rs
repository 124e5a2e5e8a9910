//! A model on disk or in memory: sizes, weights by role, and the defaults that come with it.

use std::path::Path;

use crate::{
    checkpoint::{Checkpoint, MemoryModel, Source, assign},
    config::{Config, SamplingDefaults, read_generation_config},
    error::ModelError,
    geometry::Geometry,
    pack::Manifest,
    synth::Synth,
    weights::Weights,
};

/// Far more than any real `config.json` (an entry per matrix of a mixed quantization makes some hundred kilobytes).
const CONFIG_LIMIT: u64 = 2 << 20;

/// A model that has been checked whole: every tensor is there, of the right type and shape, and none is left over.
#[derive(Debug)]
pub struct Model {
    /// Its sizes.
    pub geometry: Geometry,
    /// Its tensors by role.
    pub weights: Weights,
    /// Its tensors' bytes.
    pub checkpoint: Checkpoint,
    /// Every id that ends a generation, of `config.json` and `generation_config.json`, sorted, each once.
    pub end_tokens: Vec<u32>,
    /// How its makers sample from it.
    pub sampling_defaults: SamplingDefaults,
}

impl Model {
    /// Opens a model folder: `config.json`, `model.safetensors` or shards with `model.safetensors.index.json`, and
    /// `generation_config.json` if there is one. Reads headers only; weights are mapped.
    pub fn open(folder: &Path) -> Result<Model, ModelError> {
        Model::from_source(&Source::Folder(folder))
    }

    /// Opens a model that is already in memory; static bytes stay where they are.
    pub fn from_memory(parts: MemoryModel) -> Result<Model, ModelError> {
        Model::from_source(&Source::Memory(parts))
    }

    /// A random model, the same that its files would hold ([`Synth::files`]); tensors are made when they are needed. `name` is
    /// what it is called, and `end_tokens` end a generation.
    pub fn random(name: &str, synth: &Synth, end_tokens: &[u32]) -> Model {
        let mut end_tokens = end_tokens.to_vec();
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Model {
            geometry: synth.preset().geometry.clone(),
            weights: synth.weights().clone(),
            checkpoint: Checkpoint::made(name, synth),
            end_tokens,
            sampling_defaults: SamplingDefaults::default(),
        }
    }

    fn from_source(source: &Source) -> Result<Model, ModelError> {
        let config_file = source.label("config.json");
        let config = Config::parse(&config_file, &source.read("config.json", CONFIG_LIMIT, "every model")?)?;
        let (mut end_tokens, mut sampling_defaults) =
            (config.end_tokens.clone(), SamplingDefaults::default());
        if source.mentions("generation_config.json") {
            let bytes = source.read("generation_config.json", CONFIG_LIMIT, "the model")?;
            let file = source.label("generation_config.json");
            let (defaults, more) = read_generation_config(&file, &bytes, config.geometry.vocab)?;
            end_tokens.extend(more);
            sampling_defaults = defaults;
        }
        end_tokens.sort_unstable();
        end_tokens.dedup();
        if let Some(manifest) = Manifest::read(source)? {
            manifest.check(source)?;
        }
        let mut checkpoint = Checkpoint::open(source)?;
        let weights = assign(&config_file, &config, &checkpoint)?;
        if let Some(error) = checkpoint.unclaimed.take() {
            return Err(error);
        }
        Ok(Model { geometry: config.geometry, weights, checkpoint, end_tokens, sampling_defaults })
    }
}
