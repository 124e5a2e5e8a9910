//! Temperature, top_k, top_p, min_p, and the draw.
//!
//! A token's weight is exp((logit - largest) / temperature) in f64: proportional to its probability, 1 for the most
//! probable. Sums of weights are in f64 in a fixed order, so a draw is the same on every machine up to `exp` itself.

use lily_protocol::Sampling;

use super::Scratch;

/// How many candidates top_p looks at first, and by how much more if that was not enough.
const FIRST_LOOK: usize = 128;
const LOOK_FACTOR: usize = 8;

/// Draws a token from the filtered distribution of `scratch.logits`, whose largest value is `largest` (above -inf),
/// with a random number in [0, 1).
pub(super) fn draw(sampling: &Sampling, largest: f32, random: f64, scratch: &mut Scratch) -> u32 {
    let temperature = f64::from(sampling.temperature);
    let weight = |logit: f32| ((f64::from(logit) - f64::from(largest)) / temperature).exp();
    let Scratch { logits, weights, top } = scratch;
    weights.clear();
    let vocabulary = logits.len();
    let top_k = if sampling.top_k == 0 { vocabulary } else { sampling.top_k.min(vocabulary) };
    let min_p = f64::from(sampling.min_p);

    if top_k == vocabulary && sampling.top_p >= 1.0 {
        // Nothing has to be ranked: the candidates stay in the order of their ids.
        weights
            .extend(logits.iter().map(|&logit| Some(weight(logit)).filter(|w| *w >= min_p).unwrap_or(0.0)));
        return pick(weights, random) as u32;
    }

    let total: f64 = if top_k == vocabulary { logits.iter().map(|&logit| weight(logit)).sum() } else { 0.0 };
    let mut look = if top_k == vocabulary { FIRST_LOOK.min(vocabulary) } else { top_k };
    loop {
        let ranked = top.largest(logits, look);
        weights.clear();
        weights.extend(ranked.iter().map(|&(_, logit)| weight(logit)));
        let total = if top_k == vocabulary { total } else { weights.iter().sum() };
        let kept = nucleus(weights, f64::from(sampling.top_p) * total);
        if kept.is_none() && look < top_k {
            look = look.saturating_mul(LOOK_FACTOR).min(top_k);
            continue;
        }
        weights.truncate(kept.unwrap_or(look));
        let probable = weights.iter().take_while(|w| **w >= min_p).count();
        weights.truncate(probable.max(1));
        return ranked[pick(weights, random)].0;
    }
}

/// How many of the leading weights sum to at least `mass`; `None` where all of them do not.
fn nucleus(weights: &[f64], mass: f64) -> Option<usize> {
    let mut sum = 0.0;
    weights
        .iter()
        .position(|weight| {
            sum += weight;
            sum >= mass
        })
        .map(|index| index + 1)
}

/// An index with probability proportional to its weight. Rounding can leave the threshold above the running sum at the
/// end; the last index of any weight is then the one that was meant.
fn pick(weights: &[f64], random: f64) -> usize {
    let threshold = random * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    let mut last = 0;
    for (index, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            sum += weight;
            last = index;
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
        let weights = [0.0, 1.0, 0.0, 3.0, 0.0];
        assert_eq!(pick(&weights, 0.0), 1);
        assert_eq!(pick(&weights, 0.249), 1);
        assert_eq!(pick(&weights, 0.25), 3);
        assert_eq!(pick(&weights, 1.0), 3);
    }

    #[test]
    fn nucleus_is_the_smallest_sufficient_set() {
        assert_eq!(nucleus(&[0.5, 0.25, 0.25], 0.5), Some(1));
        assert_eq!(nucleus(&[0.5, 0.25, 0.25], 0.51), Some(2));
        assert_eq!(nucleus(&[0.5, 0.25, 0.25], 1.1), None);
    }
}
