//! Half characters in JSON escapes. JavaScript strings are UTF-16, and a program that cuts one may cut an emoji in half:
//! `"\ud83d"`. No UTF-8 text can hold that, so strict parsers refuse the whole request; a user who pasted a cut log is
//! better served by U+FFFD in its place.

/// The JSON text with each escaped surrogate that lacks its other half replaced; `None` if there is none.
pub(crate) fn repair(json: &[u8]) -> Option<Vec<u8>> {
    let mut repaired: Option<Vec<u8>> = None;
    let mut at = 0;
    while at < json.len() {
        if json[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(&json[at..]) {
            Some(0xd800..=0xdbff) if matches!(unit(&json[at + 6..]), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                // The same length, so that places in the text stay as they are.
                repaired.get_or_insert_with(|| json.to_vec())[at..at + 6].copy_from_slice(b"\\ufffd");
                at += 6;
            }
            _ => at += 2,
        }
    }
    repaired
}

/// The UTF-16 unit of a `\uXXXX` at the start.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0, |value, &digit| Some(value * 16 + char::from(digit).to_digit(16)? as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(text: &str) -> Option<String> {
        repair(text.as_bytes()).map(|bytes| String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn only_halves_are_replaced() {
        for whole in
            [r#""\ud83d\ude00""#, r#""\\ud83d""#, r#""\u00e9 \n \"""#, r#""\u12"#, r#""\"#, "plain", ""]
        {
            assert_eq!(repaired(whole), None, "{whole}");
        }
        for (cut, wanted) in [
            (r#""\ud83d""#, r#""\ufffd""#),
            (r#""\uDE00x""#, r#""\ufffdx""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\\ud83d\n""#, r#""\\\ufffd\n""#),
            (r#""\ud83d"#, r#""\ufffd"#),
        ] {
            assert_eq!(repaired(cut).as_deref(), Some(wanted), "{cut}");
        }
    }
}
