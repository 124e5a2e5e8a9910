//! Values as Python prints them: `str(value)`, and `repr(value)` inside containers.
//!
//! The engine's own way differs for floats, and it cannot be stopped: a list that holds one list twice, sixty levels
//! deep, is small in memory and endless in text. Here every item costs fuel.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Steps that one item of a container costs: items of joined lists are expensive to reach.
pub(super) const ITEM_FUEL: u64 = 4;
/// Nesting deeper than this is refused, so that a hostile value cannot exhaust the stack.
pub(super) const DEEPEST: usize = 200;

/// `str(value)`.
pub(super) fn text_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            write(state, value, 0, &mut out)?;
            Ok(out)
        }
    }
}

fn write(state: &State<'_, '_>, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    state.consume_fuel(ITEM_FUEL)?;
    if depth > DEEPEST {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply to be printed"));
    }
    match value.kind() {
        ValueKind::Number if !value.is_integer() => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(state, &item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write(state, &key, depth + 1, out)?;
                out.push_str(": ");
                write(state, &value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::String => {
            state.consume_fuel(value.as_str().map_or(0, str::len) as u64 / 64)?;
            out.push_str(&format!("{value:?}"));
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// `repr(float)`: the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        let name = if number.is_nan() { "nan" } else { "inf" };
        return if number < 0.0 { format!("-{name}") } else { name.to_owned() };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}
