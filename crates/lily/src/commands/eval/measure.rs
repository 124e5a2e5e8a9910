//! What is read off logits: how probable the text was, and how far two models are apart.

use serde::Serialize;

/// Sums of the probabilities that a model gave to what followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Foretold {
    tokens: usize,
    log_probability: f64,
}

impl Foretold {
    /// exp of the mean negative logarithm.
    pub(super) fn perplexity(self) -> f64 {
        (-self.log_probability / self.tokens.max(1) as f64).exp()
    }

    fn add(&mut self, distribution: &Distribution<'_>, next: u32) {
        self.tokens += 1;
        self.log_probability += distribution.log_probability(distribution.logits[next as usize]);
    }
}

/// How far a model is from another, over all positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Apart {
    /// Positions that were compared.
    pub(super) positions: usize,
    /// Those with the same most probable token.
    pub(super) same_top: usize,
    /// KL divergence from the other's distribution, in nats: its mean, and the largest with its position.
    pub(super) kl_mean: f64,
    pub(super) kl_max: f64,
    pub(super) kl_max_position: usize,
    /// The largest difference of a logit with its position, and the largest of the other's logits.
    pub(super) logit_difference: f64,
    pub(super) logit_difference_position: usize,
    pub(super) largest_logit: f64,
}

impl Apart {
    /// The largest difference over the largest logit.
    pub(super) fn relative_difference(&self) -> f64 {
        if self.logit_difference == 0.0 { 0.0 } else { self.logit_difference / self.largest_logit }
    }

    fn add(&mut self, got: &Distribution<'_>, want: &Distribution<'_>) {
        let position = self.positions;
        self.positions += 1;
        self.same_top += usize::from(got.top == want.top);
        let (mut kl, mut difference, mut largest) = (0.0, 0.0f64, self.largest_logit);
        for (got_logit, want_logit) in got.logits.iter().zip(want.logits) {
            let log_want = want.log_probability(*want_logit);
            kl += log_want.exp() * (log_want - got.log_probability(*got_logit));
            difference = difference.max(f64::from((got_logit - want_logit).abs()));
            largest = largest.max(f64::from(want_logit.abs()));
        }
        // Rounding can leave a sum of about -1e-16 where the two are equal.
        let kl = kl.max(0.0);
        self.kl_mean += (kl - self.kl_mean) / self.positions as f64;
        if kl > self.kl_max {
            (self.kl_max, self.kl_max_position) = (kl, position);
        }
        if difference > self.logit_difference {
            (self.logit_difference, self.logit_difference_position) = (difference, position);
        }
        self.largest_logit = largest;
    }
}

/// Everything that is read off one model, or off two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) device: Foretold,
    pub(super) against: Foretold,
    pub(super) apart: Apart,
}

impl Sums {
    /// Takes a position in: its logits, and the token that follows it if there is one. Tells which of the two has a logit
    /// that is no number.
    pub(super) fn add(
        &mut self,
        got: &[f32],
        want: Option<&[f32]>,
        next: Option<u32>,
    ) -> Result<(), NoNumber> {
        let got = Distribution::of(got).ok_or(NoNumber::Device)?;
        let want = want.map(|want| Distribution::of(want).ok_or(NoNumber::Against)).transpose()?;
        if let Some(next) = next {
            self.device.add(&got, next);
            if let Some(want) = &want {
                self.against.add(want, next);
            }
        }
        if let Some(want) = &want {
            self.apart.add(&got, want);
        }
        Ok(())
    }
}

/// Whose logits hold an infinity or no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoNumber {
    Device,
    Against,
}

/// Logits with what turns them into logarithms of probabilities.
struct Distribution<'a> {
    logits: &'a [f32],
    /// The most probable token; the first of equal ones.
    top: usize,
    /// ln of the sum of exp(logits).
    log_sum: f64,
}

impl<'a> Distribution<'a> {
    /// Nothing if a logit is no finite number.
    fn of(logits: &'a [f32]) -> Option<Self> {
        if logits.is_empty() || !logits.iter().all(|x| x.is_finite()) {
            return None;
        }
        let top = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        let highest = f64::from(logits[top]);
        let sum: f64 = logits.iter().map(|x| (f64::from(*x) - highest).exp()).sum();
        Some(Distribution { logits, top, log_sum: highest + sum.ln() })
    }

    fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit) - self.log_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-7, "{a} {b}");
    }

    #[test]
    fn perplexity_is_the_inverse_of_the_mean_probability() {
        let mut sums = Sums::default();
        let even = [0.5f32; 4];
        sums.add(&even, None, Some(3)).unwrap();
        near(sums.device.perplexity(), 4.0);
        // Probabilities 1/4 and 1/2: the geometric mean is 8^-1/2.
        sums.add(&[2f32.ln(), 0.0, 0.0], None, Some(0)).unwrap();
        sums.add(&even, None, None).unwrap();
        near(sums.device.perplexity(), 8f64.sqrt());
        assert_eq!(sums.apart, Apart::default());
    }

    #[test]
    fn two_distributions_worked_out_by_hand() {
        let mut sums = Sums::default();
        sums.add(&[1.0, -5.0], Some(&[1.0, -5.0]), Some(0)).unwrap();
        // Wanted 3/4 and 1/4, found 1/2 each: 3/4 ln(3/2) + 1/4 ln(1/2).
        sums.add(&[0.0, 0.0], Some(&[3f32.ln(), 0.0]), Some(1)).unwrap();
        sums.add(&[0.0, 1.0], Some(&[1.0, 0.0]), None).unwrap();
        let hand = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        let turned = (1f64.exp() - 1.0) / (1f64.exp() + 1.0);
        let apart = sums.apart;
        near(apart.kl_mean, (hand + turned) / 3.0);
        near(apart.kl_max, turned);
        assert_eq!((apart.positions, apart.same_top, apart.kl_max_position), (3, 2, 2));
        near(apart.logit_difference, 3f64.ln());
        assert_eq!((apart.logit_difference_position, apart.largest_logit), (1, 5.0));
        near(apart.relative_difference(), 3f64.ln() / 5.0);
        assert!(sums.against.perplexity() > sums.device.perplexity());
    }

    #[test]
    fn what_is_no_number_is_said_and_not_averaged() {
        let mut sums = Sums::default();
        let (good, bad) = ([0.0, 1.0], [0.0, f32::NAN]);
        assert_eq!(sums.add(&bad, Some(&good), Some(0)), Err(NoNumber::Device));
        assert_eq!(sums.add(&good, Some(&[f32::INFINITY, 0.0]), Some(0)), Err(NoNumber::Against));
        assert_eq!(sums.device.tokens, 0);
    }
}
