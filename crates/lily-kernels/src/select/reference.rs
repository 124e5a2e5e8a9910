//! What the two launches must find, in f64, as the engine's sampler does it: everything is sorted, nothing is clever.

use super::{Request, SEEN_IN_PROMPT};

/// The part of the pools that belongs to a request; read where its flags say so.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// u32 `[vocab]`.
    pub counts: &'a [u32],
    /// `[vocab]`.
    pub bias: &'a [f32],
    /// u32 `[ceil(vocab / 32)]`.
    pub mask: &'a [u32],
}

/// How a row ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The token, and how far (as a probability) the numbers behind the choice are from where they would choose another.
    Token(u32, f64),
    /// All are banned.
    NoneLeft,
    /// A logit is NaN or +inf.
    NotFinite,
}

/// Keeps sums and products of finite numbers finite; what has no meaning is a ban, as -inf is.
fn finite(value: f32) -> f32 {
    if value.is_nan() { f32::NEG_INFINITY } else { value.min(f32::MAX) }
}

/// The logits after bias, penalties and mask, in f32 with every step rounded; padding is -inf.
pub fn adjusted(request: &Request, logits: &[f32], entry: Entry<'_>) -> Vec<f32> {
    let mut scores = logits.to_vec();
    for (id, score) in scores.iter_mut().enumerate() {
        if id >= request.vocabulary as usize {
            *score = f32::NEG_INFINITY;
            continue;
        }
        if request.has_bias {
            *score = finite(*score + entry.bias[id]);
        }
        if request.has_counts {
            let (seen, count) = (entry.counts[id], entry.counts[id] & !SEEN_IN_PROMPT);
            if seen != 0 {
                let factor = if *score > 0.0 { request.repetition.recip() } else { request.repetition };
                *score = finite(*score * factor);
            }
            if count != 0 {
                *score = finite(*score - request.presence - request.frequency * count as f32);
            }
        }
        if request.has_mask && entry.mask[id / 32] >> (id % 32) & 1 == 0 {
            *score = f32::NEG_INFINITY;
        }
    }
    scores
}

/// True if the logits hold what no model says.
pub fn broken(request: &Request, logits: &[f32]) -> bool {
    logits[..request.vocabulary as usize].iter().any(|v| v.is_nan() || *v == f32::INFINITY)
}

/// The tokens that may be chosen, in order of rank: by falling score, the lower id first.
pub fn ranked(request: &Request, scores: &[f32]) -> Vec<(u32, f32)> {
    let scores = scores[..request.vocabulary as usize].iter().enumerate();
    let allowed = scores.filter(|(_, score)| **score > f32::NEG_INFINITY);
    let mut ranked: Vec<(u32, f32)> = allowed.map(|(id, score)| (id as u32, *score + 0.0)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked
}

/// The token of [`ranked`] ones.
pub fn choose(request: &Request, mut ranked: &[(u32, f32)]) -> Outcome {
    let Some(&(best, largest)) = ranked.first() else { return Outcome::NoneLeft };
    if request.temperature == 0.0 {
        return Outcome::Token(best, f64::INFINITY);
    }
    let temperature = f64::from(request.temperature);
    let weight = |score: f32| ((f64::from(score) - f64::from(largest)) / temperature).exp();
    if request.top_k > 0 {
        ranked = &ranked[..ranked.len().min(request.top_k)];
    }
    let mut kept: Vec<(u32, f64)> = ranked.iter().map(|(id, score)| (*id, weight(*score))).collect();
    let mut margin = f64::INFINITY;
    if request.top_p < 1.0 {
        let total: f64 = kept.iter().map(|(_, w)| w).sum();
        let mut sum = 0.0;
        let mut count = 0;
        for (_, weight) in &kept {
            sum += weight / total;
            count += 1;
            margin = margin.min((sum - f64::from(request.top_p)).abs());
            if sum >= f64::from(request.top_p) {
                break;
            }
        }
        kept.truncate(count);
    }
    let least = f64::from(request.min_p);
    for (_, weight) in &kept {
        if *weight != least {
            margin = margin.min((weight / least - 1.0).abs() / 10.0);
        }
    }
    kept.retain(|(_, weight)| *weight >= least && *weight > 0.0);
    kept.sort_by_key(|(id, _)| *id);
    let total: f64 = kept.iter().map(|(_, w)| w).sum();
    let random = uniform(request.seed, request.step);
    let mut sum = 0.0;
    let mut token = None;
    for &(id, weight) in &kept {
        sum += weight / total;
        if token.is_none() && random < sum {
            token = Some(id);
        }
        if sum < 1.0 - 1e-9 {
            margin = margin.min((sum - random).abs());
        }
    }
    Outcome::Token(token.unwrap_or(kept[kept.len() - 1].0), margin)
}

/// Philox4x32-10 with the seed as its key and the step as its counter, as a number in [0, 1) with 53 random bits.
fn uniform(seed: u64, step: u32) -> f64 {
    let block = philox([seed as u32, (seed >> 32) as u32], [step, 0, 0, 0]);
    let bits = (u64::from(block[0]) << 32 | u64::from(block[1])) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

fn philox(mut key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    for _ in 0..10 {
        let first = u64::from(a) * 0xD251_1F53;
        let second = u64::from(c) * 0xCD9E_8D57;
        a = (second >> 32) as u32 ^ b ^ key[0];
        b = second as u32;
        c = (first >> 32) as u32 ^ d ^ key[1];
        d = first as u32;
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        let counter = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];
        let words = [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1];
        assert_eq!(philox([0xA409_3822, 0x299F_31D0], counter), words);
    }
}
