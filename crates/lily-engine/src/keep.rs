//! Which cuts of a prompt are worth a snapshot.
//!
//! A snapshot copies the recurrent state (62 MiB for the true model), so a long prompt cannot keep all of its cuts.
//! What later prompts share with this one, from experience with chats and agents:
//! - all up to the last assistant header: the next turn of the same chat (a template that drops reasoning parts there);
//! - all up to the end of the system prompt: another chat of the same application;
//! - all up to an earlier turn: an edited or regenerated message;
//! - a long text without markers, changed near its end or continued.

use crate::cuts::{Cut, CutKind};

/// How many cuts of each sort are kept; earlier fields are served first where the budget is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepPolicy {
    /// Markers counted from the end of the prompt.
    pub(crate) last_markers: usize,
    /// Markers counted from the start: system prompt, first message.
    pub(crate) first_markers: usize,
    /// Multiples of the chunk, counted from the end.
    pub(crate) last_multiples: usize,
    /// Every so-many-th multiple of the chunk, wherever it is; 0 for none. These places are the same in every prompt,
    /// so that two prompts with a long common text find one near where they part.
    pub(crate) spacing_chunks: usize,
    /// One prompt plans for at most this share of the cache: 2 is half of it.
    pub(crate) share: usize,
}

impl KeepPolicy {
    /// Chosen for chats and agents by reasoning, not by measurement: six markers are two turns back.
    pub(crate) const DEFAULT: KeepPolicy =
        KeepPolicy { last_markers: 6, first_markers: 2, last_multiples: 2, spacing_chunks: 16, share: 2 };

    /// Positions to keep of a prompt's `cuts`, rising, at most `most` of them.
    pub(crate) fn positions(&self, cuts: &[Cut], chunk: usize, most: usize) -> Vec<usize> {
        let of = |kind| move |cut: &&Cut| cut.kind == kind;
        let markers = || cuts.iter().filter(of(CutKind::Marker));
        let multiples = || cuts.iter().filter(of(CutKind::Multiple));
        let spacing = self.spacing_chunks.saturating_mul(chunk);
        let wishes = markers()
            .rev()
            .take(self.last_markers.min(1))
            .chain(markers().take(self.first_markers))
            .chain(markers().rev().take(self.last_markers))
            .chain(multiples().rev().take(self.last_multiples))
            .chain(multiples().rev().filter(|cut| spacing > 0 && cut.position.is_multiple_of(spacing)));
        let mut kept = Vec::new();
        for cut in wishes {
            if kept.len() == most {
                break;
            }
            if !kept.contains(&cut.position) {
                kept.push(cut.position);
            }
        }
        kept.sort_unstable();
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts(markers: &[usize], multiples: &[usize]) -> Vec<Cut> {
        let marker = markers.iter().map(|&position| Cut { position, kind: CutKind::Marker });
        let multiple = multiples.iter().map(|&position| Cut { position, kind: CutKind::Multiple });
        let mut all: Vec<_> = marker.chain(multiple).collect();
        all.sort_by_key(|cut| cut.position);
        all
    }

    const POLICY: KeepPolicy =
        KeepPolicy { last_markers: 3, first_markers: 1, last_multiples: 2, spacing_chunks: 4, share: 2 };

    #[test]
    fn the_ends_of_a_prompt_and_every_spaced_multiple_are_kept() {
        let all = cuts(&[5, 15, 25, 35, 45], &[10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(POLICY.positions(&all, 10, usize::MAX), [5, 25, 35, 40, 45, 60, 70]);
    }

    #[test]
    fn a_short_budget_keeps_the_last_header_then_the_system_prompt() {
        let all = cuts(&[5, 15, 25, 35, 45], &[10, 20, 30, 40, 50]);
        assert!(POLICY.positions(&all, 10, 0).is_empty());
        assert_eq!(POLICY.positions(&all, 10, 1), [45]);
        assert_eq!(POLICY.positions(&all, 10, 2), [5, 45]);
        assert_eq!(POLICY.positions(&all, 10, 3), [5, 35, 45]);
    }

    #[test]
    fn a_prompt_without_cuts_keeps_nothing() {
        assert!(KeepPolicy::DEFAULT.positions(&[], 10, usize::MAX).is_empty());
    }
}
