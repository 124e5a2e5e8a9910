//! Sampling: flags over the model's own defaults.

use std::hash::{BuildHasher, RandomState};

use lily_model::SamplingDefaults;
use lily_protocol::Sampling;

use crate::cli::SamplingFlags;

/// What a model's makers recommend. A model without a generation config gets what the model card of Qwen3 recommends
/// for thinking: temperature 0.6, top_p 0.95, top_k 20.
pub(crate) fn defaults(of: &SamplingDefaults) -> Sampling {
    if *of == SamplingDefaults::default() {
        return Sampling { temperature: 0.6, top_p: 0.95, top_k: 20, ..Sampling::greedy() };
    }
    let off = Sampling::greedy();
    Sampling {
        temperature: of.temperature.unwrap_or(1.0),
        top_p: of.top_p.unwrap_or(off.top_p),
        top_k: of.top_k.map_or(off.top_k, |k| k as usize),
        min_p: of.min_p.unwrap_or(off.min_p),
        repetition_penalty: of.repetition_penalty.unwrap_or(off.repetition_penalty),
        presence_penalty: of.presence_penalty.unwrap_or(off.presence_penalty),
        ..off
    }
}

/// Flags over defaults; without `--seed`, a random one.
pub(crate) fn sampling(of: &SamplingDefaults, flags: &SamplingFlags) -> Sampling {
    let base = defaults(of);
    Sampling {
        temperature: flags.temperature.unwrap_or(base.temperature),
        top_p: flags.top_p.unwrap_or(base.top_p),
        top_k: flags.top_k.map_or(base.top_k, |k| k as usize),
        min_p: flags.min_p.unwrap_or(base.min_p),
        repetition_penalty: flags.repetition_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: flags.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: flags.frequency_penalty.unwrap_or(base.frequency_penalty),
        logit_bias: Vec::new(),
        seed: flags.seed.and_then(|seed| seed.0).unwrap_or_else(random_seed),
    }
}

/// The standard library's hash keys come from the operating system's random source.
fn random_seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
