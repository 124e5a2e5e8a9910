//! Where prefill is cut: a pure function of the token ids.
//!
//! Rounding in a model depends on where its prefill was cut. A cached state may stand in for a computed one only if
//! both were cut at the same places, so every prompt is cut by this rule, whoever asks and whatever is cached, and
//! only states at cuts are ever reused. Whether a position is a cut depends on the tokens before it and on nothing
//! after it; hence two prompts with a common prefix are cut alike within it.

/// Token sequences after which prefill is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutMarkers {
    /// Tokens that close a turn, such as `<|im_end|>`.
    pub end_of_turn: Vec<u32>,
    /// The sequence that opens an assistant's turn, such as `<|im_start|>`, `assistant`, `\n`; empty for none. A
    /// template that drops old reasoning makes the next prompt part from this one exactly here.
    pub assistant_header: Vec<u32>,
}

/// Why there is a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CutKind {
    /// A multiple of the chunk, and no marker ends here.
    Multiple,
    /// An end-of-turn token or an assistant header ends here.
    Marker,
}

/// A place where prefill pauses and a state may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Tokens before the cut; at least 1.
    pub position: usize,
    /// Why it is one.
    pub kind: CutKind,
}

/// The rule that finds cuts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRule {
    chunk: usize,
    markers: CutMarkers,
}

impl CutRule {
    /// Cuts at every multiple of `chunk` (0 counts as 1) and after every marker.
    pub fn new(chunk: usize, markers: CutMarkers) -> Self {
        CutRule { chunk: chunk.max(1), markers }
    }

    /// All cuts of `tokens` by rising position, the end included where it happens to be one. Neighbours are at most a
    /// chunk apart.
    pub fn cuts(&self, tokens: &[u32]) -> Vec<Cut> {
        (1..=tokens.len()).filter_map(|position| self.cut_after(&tokens[..position])).collect()
    }

    /// The cut at the end of `prefix`, which is not empty.
    fn cut_after(&self, prefix: &[u32]) -> Option<Cut> {
        let header = &self.markers.assistant_header;
        let ends_turn = prefix.last().is_some_and(|token| self.markers.end_of_turn.contains(token));
        let ends_header = !header.is_empty() && prefix.ends_with(header);
        let position = prefix.len();
        if ends_turn || ends_header {
            Some(Cut { position, kind: CutKind::Marker })
        } else if position.is_multiple_of(self.chunk) {
            Some(Cut { position, kind: CutKind::Multiple })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule() -> CutRule {
        CutRule::new(8, CutMarkers { end_of_turn: vec![1, 2], assistant_header: vec![3, 4, 5] })
    }

    fn positions(tokens: &[u32]) -> Vec<usize> {
        rule().cuts(tokens).iter().map(|cut| cut.position).collect()
    }

    #[test]
    fn cuts_stand_after_markers_and_at_multiples() {
        assert!(positions(&[]).is_empty());
        assert_eq!(positions(&[9, 1, 9, 3, 4, 5, 9, 9, 9]), [2, 6, 8]);
        assert_eq!(positions(&[3, 4, 9, 3, 3, 4, 5, 2]), [7, 8]);
        let kinds: Vec<_> = rule().cuts(&[9, 9, 9, 9, 9, 9, 9, 9, 2]).iter().map(|cut| cut.kind).collect();
        assert_eq!(kinds, [CutKind::Multiple, CutKind::Marker]);
    }

    #[test]
    fn a_marker_on_a_multiple_is_a_marker() {
        let cuts = rule().cuts(&[9, 9, 9, 9, 9, 9, 9, 1]);
        assert_eq!(cuts, [Cut { position: 8, kind: CutKind::Marker }]);
    }

    #[test]
    fn without_markers_only_multiples_cut() {
        let cuts = CutRule::new(3, CutMarkers::default()).cuts(&[0; 10]);
        assert_eq!(cuts.iter().map(|cut| cut.position).collect::<Vec<_>>(), [3, 6, 9]);
    }

    proptest! {
        #[test]
        fn a_prefix_is_cut_as_the_whole_is(tokens in prop::collection::vec(0u32..8, 0..80), at in 0usize..80) {
            let at = at.min(tokens.len());
            let whole: Vec<_> = rule().cuts(&tokens).into_iter().filter(|cut| cut.position <= at).collect();
            prop_assert_eq!(rule().cuts(&tokens[..at]), whole);
        }

        #[test]
        fn pieces_are_never_longer_than_a_chunk(tokens in prop::collection::vec(0u32..8, 0..80)) {
            let mut last = 0;
            for cut in rule().cuts(&tokens) {
                prop_assert!(cut.position > last && cut.position - last <= 8);
                last = cut.position;
            }
            prop_assert!(tokens.len() - last < 8);
        }
    }
}
