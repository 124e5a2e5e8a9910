//! Logits in, token out.
//!
//! The order of the steps, where others differ among themselves (llama.cpp applies temperature last by default, vLLM
//! applies min_p before top_k and top_p, Hugging Face transformers after them):
//!
//! 1. `logit_bias`, as the protocol promises: a banned token stays banned whatever follows;
//! 2. repetition penalty over prompt and output, then presence and frequency penalty over the output (OpenAI);
//! 3. greedy if the temperature is 0; otherwise division by the temperature;
//! 4. top_k, then top_p of what is left (probabilities renormalised), then min_p, as transformers does.
//!
//! The filters see probabilities after the temperature, as in transformers and vLLM, whose model cards' advice
//! (temperature 0.6, top_p 0.95, top_k 20) we want to mean the same here. min_p compares with the most probable token,
//! which every other filter keeps, so its place in the order matters only to what top_p sums over.
//!
//! Ids at or above the vocabulary (the padding of the embedding) do not exist here. The random number of a token is a
//! function of seed and step alone ([`Philox`]).

mod filters;
mod logprobs;
mod penalties;
mod philox;
mod top;

use lily_model::Choosing;
use lily_protocol::Sampling;

pub use logprobs::logprobs;
pub use philox::Philox;

use penalties::Penalties;

/// Why a sampling parameter is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {found}, and must be {wanted}")]
pub struct SamplingError {
    /// The field of [`Sampling`].
    pub field: &'static str,
    /// Its value.
    pub found: f32,
    /// What it may be.
    pub wanted: &'static str,
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The model's output is broken.
    #[error(
        "the model produced the logit {value} for token {id}: a fault of the model or the device, not of the request"
    )]
    NotFinite {
        /// Where.
        id: usize,
        /// NaN or +inf.
        value: f32,
    },
    /// The model's output is broken, as a device says that chooses tokens itself.
    #[error(
        "the model produced a logit that is NaN or infinite: a fault of the model or the device, not of the request"
    )]
    Broken,
    /// The device handed out fewer logits than the vocabulary has.
    #[error("the device produced {found} logits for a vocabulary of {vocabulary} tokens")]
    TooFew {
        /// Logits there.
        found: usize,
        /// Logits needed.
        vocabulary: usize,
    },
    /// Everything is banned.
    #[error("no token is left to choose from: every one is banned")]
    NothingLeft,
}

/// Buffers of one thread, reused from token to token and request to request.
#[derive(Debug, Default)]
pub struct Scratch {
    logits: Vec<f32>,
    kept: Vec<(u32, f64)>,
    top: top::Top,
}

/// The choice of one request's tokens: its parameters and what it has seen so far.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: usize,
    banned: Vec<u32>,
    penalties: Penalties,
    random: Philox,
    step: u64,
}

impl Sampler {
    /// A sampler for a request with this prompt, or why its parameters make no sense. Tokens in `banned` are never
    /// chosen; ids outside the vocabulary are ignored wherever they come from.
    pub fn new(
        sampling: Sampling,
        vocabulary: usize,
        prompt: &[u32],
        banned: Vec<u32>,
    ) -> Result<Self, SamplingError> {
        check(&sampling)?;
        let penalties = Penalties::new(&sampling, prompt);
        let random = Philox::new(sampling.seed);
        Ok(Sampler { sampling, vocabulary, banned, penalties, random, step: 0 })
    }

    /// Chooses the next token from raw logits, [at least the vocabulary], and remembers it.
    pub fn choose(&mut self, logits: &[f32], scratch: &mut Scratch) -> Result<u32, SamplerError> {
        load(logits, self.vocabulary, &mut scratch.logits)?;
        self.adjust(&mut scratch.logits);
        let (best, largest) = argmax(&scratch.logits).ok_or(SamplerError::NothingLeft)?;
        let id = if self.sampling.temperature == 0.0 {
            best
        } else {
            filters::draw(&self.sampling, largest, self.random.uniform(self.step), scratch)
        };
        self.accept(id);
        Ok(id)
    }

    /// Remembers a token that was chosen elsewhere in the way that [`Sampler::choosing`] says.
    pub fn accept(&mut self, id: u32) {
        self.step += 1;
        self.penalties.accept(id);
    }

    /// The same choice for a device; behind tokens in `ends` a sequence is done.
    pub fn choosing(&self, ends: &[u32]) -> Choosing {
        let s = &self.sampling;
        Choosing {
            temperature: s.temperature,
            top_p: s.top_p,
            min_p: s.min_p,
            top_k: s.top_k,
            repetition: s.repetition_penalty,
            presence: s.presence_penalty,
            frequency: s.frequency_penalty,
            seed: s.seed,
            bias: s.logit_bias.clone(),
            banned: self.banned.clone(),
            ends: ends.to_vec(),
            vocabulary: self.vocabulary,
        }
    }

    /// Bias, penalties and bans, in place.
    fn adjust(&self, logits: &mut [f32]) {
        for &(id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = finite(*logit + bias);
            }
        }
        self.penalties.apply(logits);
        for &id in &self.banned {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Keeps sums and quotients of finite numbers finite; -inf (a ban) stays.
fn finite(value: f32) -> f32 {
    if value == f32::NEG_INFINITY { value } else { value.clamp(f32::MIN, f32::MAX) }
}

/// Copies the vocabulary's logits, refusing what is no number. -inf is a ban by the model and stays.
fn load(logits: &[f32], vocabulary: usize, into: &mut Vec<f32>) -> Result<(), SamplerError> {
    let logits = sound(logits, vocabulary)?;
    into.clear();
    into.extend_from_slice(logits);
    Ok(())
}

/// The vocabulary's logits, if each is a number or -inf.
pub(crate) fn sound(logits: &[f32], vocabulary: usize) -> Result<&[f32], SamplerError> {
    let logits = logits.get(..vocabulary).ok_or(SamplerError::TooFew { found: logits.len(), vocabulary })?;
    let broken = |logit: f32| logit.is_nan() | (logit == f32::INFINITY);
    // Without an early exit the check of the usual, sound case is a few vector instructions.
    if logits.iter().fold(false, |any, &logit| any | broken(logit))
        && let Some(id) = logits.iter().position(|&logit| broken(logit))
    {
        return Err(SamplerError::NotFinite { id, value: logits[id] });
    }
    Ok(logits)
}

/// The largest value above -inf and its first index.
fn argmax(logits: &[f32]) -> Option<(u32, f32)> {
    let largest = top::maximum(logits);
    if largest == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|&logit| logit == largest).map(|id| (id as u32, largest))
}

/// Refuses numbers that have no meaning. The server words its own errors; this is the second lock.
fn check(sampling: &Sampling) -> Result<(), SamplingError> {
    let rule = |field, found: f32, good: bool, wanted| {
        if good { Ok(()) } else { Err(SamplingError { field, found, wanted }) }
    };
    let s = sampling;
    rule("temperature", s.temperature, s.temperature >= 0.0 && s.temperature.is_finite(), "finite and >= 0")?;
    rule("top_p", s.top_p, s.top_p > 0.0 && s.top_p <= 1.0, "above 0 and at most 1")?;
    rule("min_p", s.min_p, (0.0..=1.0).contains(&s.min_p), "from 0 to 1")?;
    let repetition = s.repetition_penalty;
    rule("repetition_penalty", repetition, repetition > 0.0 && repetition.is_finite(), "finite and above 0")?;
    rule("presence_penalty", s.presence_penalty, s.presence_penalty.is_finite(), "finite")?;
    rule("frequency_penalty", s.frequency_penalty, s.frequency_penalty.is_finite(), "finite")?;
    for &(_, bias) in &s.logit_bias {
        rule("logit_bias", bias, bias.is_finite(), "finite")?;
    }
    Ok(())
}

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod tests;
