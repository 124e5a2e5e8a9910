//! The functions, filters and methods that templates written for transformers expect and minijinja does not bring, or
//! brings with another meaning.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::json::tojson;
use super::python::text_of;
use super::whitespace::{is_blank, strip};

/// The message of a template's own `raise_exception`, found again as the source of the engine's error.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", string);
    environment.add_filter("trim", trim);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            out.write_str(&text_of(state, value)?).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
}

/// The filter: `str(value)`.
fn string(state: &State<'_, '_>, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => text_of(state, value).map(Value::from),
    }
}

fn raise_exception(state: &State<'_, '_>, message: &Value) -> Result<Value, Error> {
    let message = text_of(state, message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `datetime.now().strftime(format)`.
fn strftime_now(format: &str) -> Result<String, Error> {
    use std::fmt::Write as _;
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown format"))?;
    Ok(text)
}

/// The filter: `str(value).strip(characters)`.
fn trim(state: &State<'_, '_>, value: &Value, characters: Option<&str>) -> Result<Value, Error> {
    let owned;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            owned = text_of(state, value)?;
            &owned
        }
    };
    let trimmed = match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)),
        None => strip(text),
    };
    Ok(Value::from(trimmed))
}

/// Python's methods. `strip` and its kin without arguments are done here, because Python's idea of a blank is wider.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if value.kind() == ValueKind::String && arguments.is_empty() {
        let text = value.as_str().unwrap_or_default();
        match name {
            "strip" => return Ok(Value::from(strip(text))),
            "lstrip" => return Ok(Value::from(text.trim_start_matches(is_blank))),
            "rstrip" => return Ok(Value::from(text.trim_end_matches(is_blank))),
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}
