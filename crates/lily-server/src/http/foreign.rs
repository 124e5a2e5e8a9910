//! Words of other languages in a body that should be JSON. Some clients write what their language has and JSON has not, most
//! often NaN, and learn nothing from a place in the text. A number beyond all bounds (1e400) is told with them.

/// A word that JSON has not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ForeignWord {
    pub(crate) word: &'static str,
    /// What to send in its place.
    pub(crate) instead: &'static str,
    /// The name before it, if it stands in an object.
    pub(crate) field: Option<String>,
}

/// What the parser says of a number that it cannot hold.
const TOO_LARGE: &str = "number out of range";
const NUMBER: &str = "send a number, or leave it out";
const WORD: &str = "JSON's own words are null, true and false";
const WORDS: [(&str, &str); 9] = [
    ("NaN", NUMBER),
    ("nan", NUMBER),
    ("Infinity", NUMBER),
    ("-Infinity", NUMBER),
    ("inf", NUMBER),
    ("None", WORD),
    ("True", WORD),
    ("False", WORD),
    ("undefined", WORD),
];

/// The word in which the parser's error lies.
pub(crate) fn foreign_word(text: &[u8], error: &serde_json::Error) -> Option<ForeignWord> {
    // A text that is cut off ends in anything.
    if error.is_eof() {
        return None;
    }
    let found = word_at(text, error.line(), error.column())?;
    if error.to_string().starts_with(TOO_LARGE) {
        return Some(ForeignWord { word: TOO_LARGE, instead: NUMBER, ..found });
    }
    Some(found).filter(|found| !found.word.is_empty())
}

/// Line and column both from 1, the column in bytes. `word` is empty where it is none of [`WORDS`].
fn word_at(text: &[u8], line: usize, column: usize) -> Option<ForeignWord> {
    let start_of_line = match line.checked_sub(2) {
        None => 0,
        Some(before) => text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(before)?.0 + 1,
    };
    let fault = start_of_line + column.checked_sub(1)?;
    let of_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+.".contains(byte);
    let before = text.get(..fault)?;
    let start = before.iter().rposition(|byte| !of_word(byte)).map_or(0, |at| at + 1);
    let length = text[start..].iter().take_while(|byte| of_word(byte)).count();
    let found = &text[start..start + length];
    let known = WORDS.into_iter().find(|(word, _)| word.as_bytes() == found);
    let (word, instead) = known.unwrap_or_default();
    Some(ForeignWord { word, instead, field: name_before(&text[..start]) })
}

/// `name` of a text that ends with `"name":`.
fn name_before(text: &[u8]) -> Option<String> {
    let quoted = text.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
    let quote = quoted.iter().rposition(|&byte| byte == b'"')?;
    let name = std::str::from_utf8(&quoted[quote + 1..]).ok()?;
    // Nobody's field has an escape in its name.
    (!name.contains('\\') && !quoted[..quote].ends_with(b"\\")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn found(text: &str) -> Option<(&'static str, Option<String>)> {
        let error = serde_json::from_str::<Value>(text).expect_err(text);
        foreign_word(text.as_bytes(), &error).map(|found| (found.word, found.field))
    }

    #[test]
    fn words_are_found_where_the_parser_stopped() {
        let named = |name: &str| Some(name.to_owned());
        for (text, word, field) in [
            ("{\"temperature\": NaN}", "NaN", named("temperature")),
            ("{\"a\": 1,\n\n \"top_p\" :\n nan}", "nan", named("top_p")),
            ("{\"a\":-Infinity}", "-Infinity", named("a")),
            ("{\"\u{e4}\":Infinity,\"b\":NaN}", "Infinity", named("\u{e4}")),
            ("{\"a\": \"NaN\", \"stream\": True}", "True", named("stream")),
            ("{\"stop\": None}", "None", named("stop")),
            ("{\"x\": undefined}", "undefined", named("x")),
            ("{\"x\": [1, NaN]}", "NaN", None),
            ("{\"n\":1e400,\"b\":1}", TOO_LARGE, named("n")),
            ("{\"b\":1, \"top_p\": -1.5e+999}", TOO_LARGE, named("top_p")),
            ("NaN", "NaN", None),
        ] {
            assert_eq!(found(text), Some((word, field)), "{text}");
        }
    }

    #[test]
    fn other_faults_are_none() {
        for text in [
            "",
            "{",
            "{\"a\": }",
            "{\"a\": 01}",
            "{\"a\": 1 2}",
            "{\"a\": 1.}",
            "{\"a\": \"NaN}",
            "{'a': 1}",
            "{\"a\": Nano}",
            "{\"a\": 1}\nx",
            "{NaN: 1",
            "\u{e4}",
        ] {
            let word = found(text);
            assert!(word.is_none() || text.starts_with("{NaN"), "{text}: {word:?}");
        }
        for (line, column) in [(0, 0), (1, 0), (9, 9), (1, 99), (usize::MAX, usize::MAX)] {
            let _ = word_at(b"{\"a\": NaN}", line, column);
        }
    }
}
