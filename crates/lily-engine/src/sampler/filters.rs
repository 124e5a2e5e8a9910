//! Temperature, top_k, top_p, min_p, and the draw.
//!
//! A token's weight is exp((logit - largest) / temperature) in f64: proportional to its probability, 1 for the most
//! probable. top_k and top_p keep the first so many tokens in order of rank, so both come down to the last token kept;
//! the draw then walks the kept ones by rising id. A walk by rank would need them sorted.

use lily_protocol::Sampling;

use super::Scratch;
use super::top::{Top, by_rank};

/// Candidates that top_p looks at first. Nearly always enough; if not, a selection over all of them follows.
const FIRST_LOOK: usize = 128;

/// Draws a token from the filtered distribution of `scratch.logits`, whose largest value is `largest` (above -inf),
/// with a random number in [0, 1).
pub(super) fn draw(sampling: &Sampling, largest: f32, random: f64, scratch: &mut Scratch) -> u32 {
    let temperature = f64::from(sampling.temperature);
    let weight = |logit: f32| ((f64::from(logit) - f64::from(largest)) / temperature).exp();
    let Scratch { logits, kept, top } = scratch;
    let last = last_kept(sampling, logits, weight, top);
    // weight >= min_p, told from the logit: most tokens then need no exponential. -inf where min_p is 0.
    let bound = f64::from(largest) + temperature * f64::from(sampling.min_p).ln();
    let candidates = logits.iter().enumerate().map(|(id, &logit)| (id as u32, logit));
    kept.clear();
    kept.extend(
        candidates
            .filter(|candidate| f64::from(candidate.1) >= bound)
            .filter(|candidate| last.is_none_or(|last| by_rank(candidate, &last).is_le()))
            .map(|(id, logit)| (id, weight(logit))),
    );
    pick(kept, random)
}

/// The last token in order of rank that top_k and top_p keep; `None` where they keep all.
fn last_kept(
    sampling: &Sampling,
    logits: &[f32],
    weight: impl Fn(f32) -> f64,
    top: &mut Top,
) -> Option<(u32, f32)> {
    let all = sampling.top_k == 0 || sampling.top_k >= logits.len();
    if sampling.top_p >= 1.0 {
        return if all { None } else { top.largest(logits, sampling.top_k).last().copied() };
    }
    let share = f64::from(sampling.top_p);
    let ranked = top.largest(logits, if all { FIRST_LOOK } else { sampling.top_k });
    if !all {
        let total: f64 = ranked.iter().map(|&(_, logit)| weight(logit)).sum();
        return nucleus(ranked, &weight, share * total).or(ranked.last().copied());
    }
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    match nucleus(ranked, &weight, share * total) {
        Some(last) => Some(last),
        None => top.last_of_mass(logits, &weight, share * total),
    }
}

/// The candidate with which the weights of the leading ones sum to at least `mass`; `None` where all of them do not.
fn nucleus(ranked: &[(u32, f32)], weight: impl Fn(f32) -> f64, mass: f64) -> Option<(u32, f32)> {
    let mut sum = 0.0;
    ranked.iter().copied().find(|&(_, logit)| {
        sum += weight(logit);
        sum >= mass
    })
}

/// An id with probability proportional to its weight, of at least one with a weight. Rounding can leave the threshold
/// above the running sum at the end; the last id of any weight is then the one that was meant.
fn pick(weights: &[(u32, f64)], random: f64) -> u32 {
    let threshold = random * weights.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let mut last = 0;
    for &(id, weight) in weights {
        if weight > 0.0 {
            sum += weight;
            last = id;
            if threshold < sum {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pick_never_lands_on_a_weight_of_zero() {
        let weights = [(5, 0.0), (6, 1.0), (7, 0.0), (8, 3.0), (9, 0.0)];
        assert_eq!(pick(&weights, 0.0), 6);
        assert_eq!(pick(&weights, 0.249), 6);
        assert_eq!(pick(&weights, 0.25), 8);
        assert_eq!(pick(&weights, 1.0), 8);
    }

    #[test]
    fn nucleus_is_the_smallest_sufficient_set() {
        let ranked = [(9, 0.5), (4, 0.25), (3, 0.25)];
        let last = |mass| nucleus(&ranked, f64::from, mass).map(|(id, _)| id);
        assert_eq!(last(0.5), Some(9));
        assert_eq!(last(0.51), Some(4));
        assert_eq!(last(1.0), Some(3));
        assert_eq!(last(1.1), None);
    }
}
