//! Repetition, presence and frequency penalties.

use std::collections::{BTreeMap, BTreeSet};

use lily_protocol::Sampling;

use super::finite;

/// What a request has said, as far as its penalties need it. Sorted sets, so that the work is the same in every run.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Ids of prompt and output; empty while the repetition penalty is off.
    seen: BTreeSet<u32>,
    /// Occurrences in the output; empty while the other two are off.
    counts: BTreeMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(sampling: &Sampling, prompt: &[u32]) -> Self {
        let repetition = sampling.repetition_penalty;
        let seen = if repetition == 1.0 { BTreeSet::new() } else { prompt.iter().copied().collect() };
        Penalties {
            repetition,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            seen,
            counts: BTreeMap::new(),
        }
    }

    /// Changes the logits in place.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for &id in &self.seen {
            if let Some(logit) = logits.get_mut(id as usize) {
                let factor = if *logit > 0.0 { self.repetition.recip() } else { self.repetition };
                *logit = finite(*logit * factor);
            }
        }
        for (&id, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = finite(*logit - self.presence - self.frequency * count as f32);
            }
        }
    }

    /// Remembers a chosen token.
    pub(super) fn accept(&mut self, id: u32) {
        if self.repetition != 1.0 {
            self.seen.insert(id);
        }
        if self.presence != 0.0 || self.frequency != 0.0 {
            *self.counts.entry(id).or_default() += 1;
        }
    }
}
