//! The text of one value as JSON.
//!
//! - A parameter that can only be a string is the text itself: `02134`, `1e5`, `true` and `null` stay strings.
//! - One that can be other things is read as JSON, with Python's `True`, `False` and `None` understood in any case, and
//!   `5.0` taken for an integer. If it can also be a string, it is one when it is nothing else that the schema allows.
//!   If it cannot, but its text is JSON of another type, that JSON is passed on, and text that is no JSON is a string: the
//!   caller then sees what the model wrote, and can tell it what is wrong.
//! - One that nothing is said about is an object, an array, a number or a boolean if it reads as one, and else a string.
//!
//! JSON is passed on as it was written, so numbers keep all of their digits.

use serde_json::Value;

use super::signature::Kinds;
use super::tags::is_blank;

/// Integers beyond this are not exact as f64.
const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

/// JSON text for `text`, given the types it may have.
pub(super) fn argument(text: &str, kinds: Option<Kinds>) -> String {
    let trimmed = text.trim_matches(is_blank);
    let read = match kinds {
        Some(Kinds::STRING) => None,
        Some(kinds) => typed(trimmed, kinds),
        None => match serde_json::from_str(trimmed) {
            Ok(Value::Null | Value::String(_)) | Err(_) => None,
            Ok(_) => Some(trimmed.to_owned()),
        },
    };
    read.unwrap_or_else(|| quoted(text))
}

/// A JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// `None`: the text itself is meant.
fn typed(text: &str, kinds: Kinds) -> Option<String> {
    let json = match word(text) {
        Some(json) => json,
        None => text,
    };
    let value: Value = serde_json::from_str(json).ok()?;
    let found = Kinds::of(&value);
    if !found.meets(kinds) && kinds.meets(Kinds::STRING) || value.is_string() && kinds.meets(Kinds::STRING) {
        return None;
    }
    if kinds.meets(Kinds::INTEGER) && !kinds.meets(Kinds::NUMBER) {
        return Some(integer(&value).unwrap_or_else(|| json.to_owned()));
    }
    Some(json.to_owned())
}

/// The constants of JSON and Python, in any case.
fn word(text: &str) -> Option<&'static str> {
    const WORDS: [(&str, &str); 4] =
        [("true", "true"), ("false", "false"), ("null", "null"), ("none", "null")];
    WORDS.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|&(_, json)| json)
}

/// A whole number that was written as a float, as an integer.
fn integer(value: &Value) -> Option<String> {
    let number = value.as_number().filter(|number| number.is_f64())?.as_f64()?;
    (number.fract() == 0.0 && number.abs() < LARGEST_EXACT).then(|| format!("{}", number as i64))
}
