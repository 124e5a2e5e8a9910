//! What happens to a field of a request: one of three classes. The tables of the API families are in `tables`; `docs/api.md`
//! is generated from them.
//!
//! A client may send anything that cannot change its answer. What would change the answer and is not offered is refused
//! by name: an answer that silently ignores a wish is worse than an error. `null` counts as absent everywhere.

use serde_json::{Map, Value};

use crate::errors::{ApiError, Kind, brief};

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Obeyed.
    Supported,
    /// Taken without effect on the answer.
    Accepted,
    /// A 400 that names the field, unless the value is one of these (JSON texts), which ask for nothing.
    Refused {
        /// Values that ask for nothing.
        unless: &'static [&'static str],
    },
}

/// One field of the request.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) class: Class,
    /// Type and range.
    pub(crate) accepts: &'static str,
    pub(crate) doc: &'static str,
}

/// The fields of one route.
pub(crate) struct Family {
    /// As documented: `POST /v1/...`.
    pub(crate) route: &'static str,
    /// Groups of fields; the first entry for a name is the one that counts.
    pub(crate) groups: &'static [&'static [Field]],
}

impl Family {
    /// Every field, in the order of the tables.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static Field> + use<> {
        let groups = self.groups;
        let all = move || groups.iter().flat_map(|group| group.iter());
        let first = move |at: usize, field: &Field| all().take(at).all(|other| other.name != field.name);
        all().enumerate().filter(move |&(at, field)| first(at, field)).map(|(_, field)| field)
    }

    /// The table's entry for a name.
    fn find(&self, name: &str) -> Option<&'static Field> {
        self.groups.iter().flat_map(|group| group.iter()).find(|field| field.name == name)
    }

    /// Refuses what is not offered and returns the names that the table does not know.
    pub(crate) fn classify<'a>(&self, request: &'a Map<String, Value>) -> Result<Vec<&'a str>, ApiError> {
        let mut unknown = Vec::new();
        for (name, value) in request {
            match self.find(name) {
                None => unknown.push(name.as_str()),
                Some(field) => refuse(field, value)?,
            }
        }
        Ok(unknown)
    }
}

fn refuse(field: &Field, value: &Value) -> Result<(), ApiError> {
    let unsupported = |message: String| Err(Kind::Unsupported.error(message).at(field.name));
    if value.is_null() {
        return Ok(());
    }
    if field.name == "store" && value != &Value::Bool(false) {
        return unsupported("`store` must be false or absent: nothing is stored here".into());
    }
    let Class::Refused { unless } = field.class else { return Ok(()) };
    let asks_for_nothing = unless.iter().any(|text| same(value, text));
    if asks_for_nothing {
        return Ok(());
    }
    let hint = match unless {
        [] => "leave it out".to_string(),
        values => format!("leave it out or send {}", values.join(" or ")),
    };
    let why = if field.doc.is_empty() { String::new() } else { format!(". {}", field.doc) };
    unsupported(format!("`{}` (here {}) is not supported here: {hint}{why}", field.name, brief(value)))
}

/// Whether a value equals a JSON text; numbers by value, so that `1.0` is `1`.
fn same(value: &Value, text: &str) -> bool {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(wanted)) => value.as_f64().is_some_and(|found| Some(found) == wanted.as_f64()),
        Ok(wanted) => *value == wanted,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tables::{CHAT, FAMILIES};

    fn check(request: Value) -> Result<Vec<String>, ApiError> {
        let map = request.as_object().cloned().unwrap_or_default();
        CHAT.classify(&map).map(|names| names.into_iter().map(String::from).collect())
    }

    #[test]
    fn names_are_unique_and_values_are_json() {
        for group in FAMILIES.iter().flat_map(|family| family.groups) {
            for (at, field) in group.iter().enumerate() {
                assert!(group[..at].iter().all(|other| other.name != field.name), "{} twice", field.name);
                if let Class::Refused { unless } = field.class {
                    for text in unless {
                        assert!(serde_json::from_str::<Value>(text).is_ok(), "{}: {text}", field.name);
                    }
                }
            }
        }
    }

    #[test]
    fn values_that_ask_for_nothing_pass() {
        let quiet = json!({
            "store": false, "audio": null, "response_format": {"type": "text"}, "parallel_tool_calls": true,
            "tools": [], "best_of": 1.0, "modalities": ["text"], "metadata": {"a": "b"}, "user": 3, "tool_choice": "auto",
        });
        assert_eq!(check(quiet), Ok(vec![]));
        assert_eq!(check(json!({"newer_field": 1, "messages": []})), Ok(vec!["newer_field".into()]));
    }

    #[test]
    fn every_refused_field_is_named() {
        for field in CHAT.fields().filter(|field| matches!(field.class, Class::Refused { .. })) {
            let error = check(json!({field.name: {"some": "wish"}})).expect_err(field.name);
            assert_eq!((error.kind, error.param.as_deref()), (Kind::Unsupported, Some(field.name)));
            assert_eq!(check(json!({field.name: null})), Ok(vec![]), "{}: null", field.name);
        }
        assert_eq!(check(json!({"store": true})).map_err(|error| error.param), Err(Some("store".into())));
    }
}
