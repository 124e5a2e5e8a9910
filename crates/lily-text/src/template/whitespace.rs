//! What Python's `str.strip` calls a blank: Unicode white space, and the four information separators of ASCII besides.

/// True for a character that `str.strip()` removes.
pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_blank)
}
