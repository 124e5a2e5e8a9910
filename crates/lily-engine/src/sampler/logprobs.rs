//! Log probabilities of the model itself.

use lily_protocol::Logprobs;

use super::Scratch;
use super::top::maximum;

/// Log softmax of the raw logits over the vocabulary (ids below `vocabulary`; padding has no probability): of `chosen`,
/// and of the `n` most probable tokens, the lower id first on equal ones. Tokens of probability 0 are not listed.
/// Logits must not be NaN.
pub fn logprobs(logits: &[f32], vocabulary: usize, chosen: u32, n: usize, scratch: &mut Scratch) -> Logprobs {
    let logits = &logits[..vocabulary.min(logits.len())];
    let largest = f64::from(maximum(logits));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let normaliser = largest + sum.ln();
    let log = |logit: f32| (f64::from(logit) - normaliser) as f32;
    let chosen = log(logits.get(chosen as usize).copied().unwrap_or(f32::NEG_INFINITY));
    let ranked = scratch.top.largest(logits, n).iter();
    let top = ranked.take_while(|(_, logit)| *logit > f32::NEG_INFINITY).map(|&(id, logit)| (id, log(logit)));
    Logprobs { chosen, top: top.collect() }
}
