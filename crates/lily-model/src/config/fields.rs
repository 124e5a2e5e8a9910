//! Reading fields of a JSON object with errors that name file, path, value found and value wanted.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ModelError, quoted};

/// A JSON object, and where it stands.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    file: &'a str,
    /// The path of the field that holds this object; empty for the file itself.
    parent: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The object that a whole file holds.
    pub(crate) fn of_file(file: &'a str, value: &'a Value) -> Result<Self, ModelError> {
        match value {
            Value::Object(map) => Ok(Fields { file, parent: String::new(), map }),
            other => Err(ModelError::Json {
                file: file.to_owned(),
                problem: format!("the file holds {}; wanted an object", shown(other)),
            }),
        }
    }

    /// The object in a field; `None` where the field is absent or null.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { file: self.file, parent: self.path(name), map })),
            Some(other) => Err(self.wrong(name, other, "an object")),
        }
    }

    /// An object that stands at a path known to the caller.
    pub(crate) fn at(file: &'a str, parent: String, map: &'a Map<String, Value>) -> Self {
        Fields { file, parent, map }
    }

    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.map.iter()
    }

    /// A field's value; null counts as absent, as everywhere in these files.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The path of a field, for messages.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.parent.is_empty() { quoted(name) } else { format!("{}.{}", self.parent, quoted(name)) }
    }

    pub(crate) fn wrong(&self, name: &str, found: &Value, wanted: impl Into<String>) -> ModelError {
        self.refused(name, shown(found), wanted)
    }

    pub(crate) fn refused(&self, name: &str, found: String, wanted: impl Into<String>) -> ModelError {
        ModelError::Field { file: self.file.to_owned(), field: self.path(name), found, wanted: wanted.into() }
    }

    pub(crate) fn missing(&self, name: &str, wanted: impl Into<String>) -> ModelError {
        ModelError::MissingField { file: self.file.to_owned(), field: self.path(name), wanted: wanted.into() }
    }

    pub(crate) fn unsupported(&self, name: &str, found: &Value, wanted: impl Into<String>) -> ModelError {
        ModelError::Unsupported {
            file: self.file.to_owned(),
            field: self.path(name),
            found: shown(found),
            wanted: wanted.into(),
        }
    }

    /// A whole number within `range`; `None` where the field is absent.
    pub(crate) fn size_or_none(
        &self,
        name: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| range.contains(n))
            .map(Some)
            .ok_or_else(|| self.wrong(name, value, whole_number(&range)))
    }

    /// A whole number within `range` that must be there.
    pub(crate) fn size(&self, name: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        self.size_or_none(name, range.clone())?.ok_or_else(|| self.missing(name, whole_number(&range)))
    }

    /// A finite number; `None` where the field is absent.
    pub(crate) fn number(&self, name: &str, wanted: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().filter(|x| x.is_finite()).map(Some).ok_or_else(|| self.wrong(name, value, wanted))
    }

    /// A number that `accept` takes; `None` where the field is absent.
    pub(crate) fn number_where(
        &self,
        name: &str,
        wanted: &str,
        accept: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ModelError> {
        match self.number(name, wanted)? {
            Some(x) if !accept(x) => {
                Err(self.refused(name, self.get(name).map_or_else(String::new, shown), wanted))
            }
            other => Ok(other),
        }
    }

    /// True or false; `None` where the field is absent.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    /// A string; `None` where the field is absent.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, value, "a string"))
    }

    /// Token ids below `vocab`: one number or a list of them; `None` where the field is absent.
    pub(crate) fn token_ids(&self, name: &str, vocab: usize) -> Result<Option<Vec<u32>>, ModelError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let id = |value: &Value| {
            value
                .as_u64()
                .filter(|id| (*id as u128) < vocab as u128)
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| self.wrong(name, value, format!("token ids below vocab_size, {vocab}")))
        };
        match value {
            Value::Array(list) => list.iter().map(id).collect::<Result<_, _>>().map(Some),
            one => id(one).map(|id| Some(vec![id])),
        }
    }
}

fn whole_number(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

/// A value for a message: scalars as they are, composites by kind, because they may be large.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("an object of {} fields", map.len()),
        Value::String(text) => format!("\"{}\"", quoted(text)),
        scalar => scalar.to_string(),
    }
}
