//! The tags of a call, and how far a text has one.

pub(super) const TOOL_OPEN: &str = "<tool_call>";
pub(super) const TOOL_CLOSE: &str = "</tool_call>";
/// Ends before the name.
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_CLOSE: &str = "</function>";
/// Ends before the key.
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_CLOSE: &str = "</parameter>";

/// Bytes of a name; what is longer is no tag. This bounds what is read again with each part.
const LONGEST_NAME: usize = 1024;

/// What a text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// One of the tags that were looked for.
    Tag(&'static str),
    /// The start of one, perhaps an empty one: more text decides.
    Undecided,
    /// None of them, whatever follows.
    Other,
}

pub(super) fn look(text: &str, tags: &[&'static str]) -> Look {
    if let Some(tag) = tags.iter().find(|&&tag| text.starts_with(tag)) {
        return Look::Tag(tag);
    }
    if begins_one(text, tags) { Look::Undecided } else { Look::Other }
}

/// True if one of the tags starts with `text`.
pub(super) fn begins_one(text: &str, tags: &[&str]) -> bool {
    tags.iter().any(|tag| tag.starts_with(text))
}

/// What may stand between tags.
pub(super) fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

/// The name inside `<function=NAME>` or `<parameter=NAME>`, from the text after `=`.
pub(super) enum TagName<'a> {
    /// The name, and the bytes up to and with `>`.
    Name(&'a str, usize),
    /// `>` may still come.
    Undecided,
    /// No name, or a line break or another tag before `>`.
    Broken,
}

pub(super) fn tag_name(text: &str) -> TagName<'_> {
    let searched = text.char_indices().map(|(at, _)| at).take_while(|&at| at <= LONGEST_NAME);
    let end = searched.zip(text.chars()).find(|(_, character)| matches!(character, '>' | '<' | '\n'));
    match end {
        Some((end, '>')) => match text[..end].trim() {
            "" => TagName::Broken,
            name => TagName::Name(name, end + 1),
        },
        Some(_) => TagName::Broken,
        None if text.len() > LONGEST_NAME => TagName::Broken,
        None => TagName::Undecided,
    }
}
