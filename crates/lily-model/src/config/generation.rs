//! `generation_config.json`: how the model's makers sample from it, and further end tokens.

use super::{fields::Fields, parse_json};
use crate::error::ModelError;

/// Sampling settings that the model's makers recommend; `None` where they say nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// At least 0. 0 (greedy) where `do_sample` is false.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    /// 0 keeps every token.
    pub top_k: Option<u32>,
    /// From 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 does nothing.
    pub repetition_penalty: Option<f32>,
    /// From -2 to 2; 0 does nothing.
    pub presence_penalty: Option<f32>,
    /// False asks for greedy decoding.
    pub do_sample: Option<bool>,
}

/// The settings and the end tokens (ids below `vocab`) of a `generation_config.json`.
pub(crate) fn read_generation_config(
    file: &str,
    bytes: &[u8],
    vocab: usize,
) -> Result<(SamplingDefaults, Vec<u32>), ModelError> {
    let value = parse_json(file, bytes)?;
    let fields = Fields::of_file(file, &value)?;
    let number = |name: &str, wanted: &str, accept: fn(f64) -> bool| -> Result<Option<f32>, ModelError> {
        Ok(fields.number_where(name, wanted, accept)?.map(|x| x as f32))
    };
    let do_sample = fields.flag("do_sample")?;
    let temperature = number("temperature", "from 0 to 100", |x| (0.0..=100.0).contains(&x))?;
    let defaults = SamplingDefaults {
        temperature: if do_sample == Some(false) { Some(0.0) } else { temperature },
        top_p: number("top_p", "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?,
        top_k: fields.size_or_none("top_k", 0..=u32::MAX as usize)?.map(|k| k as u32),
        min_p: number("min_p", "from 0 to 1", |x| (0.0..=1.0).contains(&x))?,
        repetition_penalty: number("repetition_penalty", "above 0 and at most 100", |x| {
            x > 0.0 && x <= 100.0
        })?,
        presence_penalty: number("presence_penalty", "from -2 to 2", |x| (-2.0..=2.0).contains(&x))?,
        do_sample,
    };
    Ok((defaults, fields.token_ids("eos_token_id", vocab)?.unwrap_or_default()))
}
