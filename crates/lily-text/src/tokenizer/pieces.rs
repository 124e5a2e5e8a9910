//! Cutting normalised text into the pieces that are merged separately.
//!
//! The expressions of the Qwen family end in `\s+(?!\S)|\s+`: a run of blanks leaves its last one to the word that
//! follows. Looking ahead is what makes expression engines slow, so the rest is left to a linear-time engine and this
//! one rule is applied here.

use regex::Regex;

/// What all known expressions end in.
const BLANKS: &str = r"|\s+(?!\S)|\s+";

/// Qwen3.5 and later: marks stay with their letters.
pub(super) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The expressions that have been checked to follow the rule above: no alternative but the last two can end in a blank
/// that is not a line break.
const KNOWN: [&str; 2] = [
    QWEN35,
    // Qwen2 and Qwen3.
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// A pre-tokenizer.
pub(super) struct Pieces {
    expression: Regex,
}

impl Pieces {
    /// `None` for an expression that is not among the known ones.
    pub(super) fn new(pattern: &str) -> Option<Self> {
        let known = KNOWN.iter().find(|known| **known == pattern)?;
        let start = known.strip_suffix(BLANKS)?;
        let expression = Regex::new(&format!(r"{start}|\s+")).ok()?;
        Some(Pieces { expression })
    }

    /// The pieces of `text`, in order; together they are the text.
    pub(super) fn cut<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest_start = at;
            if rest_start == text.len() {
                return None;
            }
            let found = self.expression.find_at(text, rest_start)?;
            at = found.end();
            let piece = &text[rest_start..at];
            if let Some(last) = piece.chars().next_back()
                && last.is_whitespace()
                && !matches!(last, '\r' | '\n')
                && at < text.len()
                && piece.len() > last.len_utf8()
            {
                at -= last.len_utf8();
            }
            Some(&text[rest_start..at])
        })
    }
}
