//! `config.json` and `generation_config.json`: plain or the multimodal wrapper, into [`Geometry`], quantization and
//! defaults. Sizes are required and bounded; switches are checked to be the ones this architecture is computed with.

pub(crate) mod architecture;
mod fields;
mod generation;
mod quantization;
pub(crate) mod write;

use serde_json::Value;

use crate::{error::ModelError, geometry::Geometry};
use fields::Fields;

pub use generation::SamplingDefaults;
pub use quantization::Format;
pub(crate) use {generation::read_generation_config, quantization::Quantization};

/// What `config.json` says.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) geometry: Geometry,
    /// `None`: the checkpoint is not quantized.
    pub(crate) quantization: Option<Quantization>,
    /// End tokens of `config.json` alone.
    pub(crate) end_tokens: Vec<u32>,
    /// lm_head is the embedding.
    pub(crate) tied: bool,
}

/// Parses a JSON file.
pub(crate) fn parse_json(file: &str, bytes: &[u8]) -> Result<Value, ModelError> {
    serde_json::from_slice(bytes).map_err(|error| ModelError::Json {
        file: file.to_owned(),
        problem: crate::error::json_problem(&error),
    })
}

impl Config {
    /// Reads `config.json`; `file` is how messages name it.
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Config, ModelError> {
        let value = parse_json(file, bytes)?;
        let top = Fields::of_file(file, &value)?;
        let text = top.object("text_config")?.unwrap_or_else(|| top.clone());
        architecture::check_supported(&top, &text)?;
        let geometry = architecture::geometry(&text)?;
        let end_tokens = match top.token_ids("eos_token_id", geometry.vocab)? {
            Some(ids) => ids,
            None => text.token_ids("eos_token_id", geometry.vocab)?.unwrap_or_default(),
        };
        let tied = match text.flag("tie_word_embeddings")? {
            Some(tied) => tied,
            None => top.flag("tie_word_embeddings")?.unwrap_or(false),
        };
        Ok(Config { quantization: Quantization::read(&top, &text)?, geometry, end_tokens, tied })
    }
}
