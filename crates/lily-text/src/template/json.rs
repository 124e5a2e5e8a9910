//! `tojson` as Python writes it: `json.dumps(value, ensure_ascii=False)` with the arguments that transformers passes on.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::{DEEPEST, ITEM_FUEL, float};

/// Indentation wider than this is refused: its product with the depth is what gets written.
const WIDEST_INDENT: usize = 64;

/// The filter. Arguments as in transformers: `tojson(ensure_ascii, indent, separators, sort_keys)`, by place or by name.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    arguments: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (placed, kwargs) = from_args::<(&[Value], Kwargs)>(&arguments)?;
    if placed.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let named = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let value =
            if kwargs.has(name) { Some(kwargs.get::<Value>(name)?) } else { placed.get(place).cloned() };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let indent = indent_text(named(1, "indent")?)?;
    let (item, key) = separator_texts(named(2, "separators")?, indent.is_some())?;
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii: named(0, "ensure_ascii")?.is_some_and(|value| value.is_true()),
        sort_keys: named(3, "sort_keys")?.is_some_and(|value| value.is_true()),
        indent,
        item,
        key,
        depth: 0,
    };
    kwargs.assert_all_used()?;
    writer.value(state, value)?;
    Ok(Value::from(writer.out))
}

fn indent_text(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return if text.len() <= WIDEST_INDENT {
            Ok(Some(text.to_owned()))
        } else {
            Err(wrong("indent is too wide"))
        };
    }
    let columns = match indent.kind() {
        ValueKind::Bool => usize::from(indent.is_true()),
        _ => usize::try_from(indent.as_i64().ok_or_else(|| wrong("indent is neither a number nor text"))?)
            .unwrap_or(0),
    };
    if columns > WIDEST_INDENT {
        return Err(wrong("indent is too wide"));
    }
    Ok(Some(" ".repeat(columns)))
}

/// Between items, and between key and value.
fn separator_texts(separators: Option<Value>, indented: bool) -> Result<(String, String), Error> {
    let Some(pair) = separators else {
        return Ok((if indented { "," } else { ", " }.to_owned(), ": ".to_owned()));
    };
    let texts: Vec<Value> = pair.try_iter()?.collect();
    match &texts[..] {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) if item.len() + key.len() <= WIDEST_INDENT => {
                Ok((item.into(), key.into()))
            }
            _ => Err(wrong("separators are not two short texts")),
        },
        _ => Err(wrong("separators are not two texts")),
    }
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
    depth: usize,
}

impl Writer {
    fn value(&mut self, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
        state.consume_fuel(ITEM_FUEL)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(state, value)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(state, value)?,
            kind => return Err(wrong(&format!("Object of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
        self.open('[')?;
        let mut empty = true;
        for item in value.try_iter()? {
            self.before_item(empty);
            empty = false;
            self.value(state, &item)?;
        }
        self.close(']', empty);
        Ok(())
    }

    fn map(&mut self, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
        self.open('{')?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        for (i, key) in keys.iter().enumerate() {
            self.before_item(i == 0);
            match key.as_str() {
                Some(text) => self.string(text),
                None => self.plain_key(key)?,
            }
            self.out.push_str(&self.key);
            self.value(state, &value.get_item(key)?)?;
        }
        self.close('}', keys.is_empty());
        Ok(())
    }

    /// Python writes numbers, booleans and None as keys the way it writes them as values.
    fn plain_key(&mut self, key: &Value) -> Result<(), Error> {
        self.out.push('"');
        match key.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if key.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(key)?,
            kind => return Err(wrong(&format!("keys must be text or numbers, not {kind}"))),
        }
        self.out.push('"');
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            let number = f64::try_from(value.clone())?;
            self.out.push_str(&match number {
                f64::INFINITY => "Infinity".to_owned(),
                f64::NEG_INFINITY => "-Infinity".to_owned(),
                number if number.is_nan() => "NaN".to_owned(),
                number => float(number),
            });
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || self.ensure_ascii && !c.is_ascii() && !is_noncharacter(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                // Python leaves DEL alone without ensure_ascii, and with it too.
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.out.push(bracket);
        self.depth += 1;
        if self.depth > DEEPEST { Err(wrong("a value is nested too deeply for JSON")) } else { Ok(()) }
    }

    fn before_item(&mut self, first: bool) {
        if !first {
            self.out.push_str(&self.item);
        }
        self.line(self.depth);
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.line(self.depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }
}

/// Private characters of [`super::protect`] must survive `ensure_ascii`, or they could not be found again. Other
/// noncharacters never occur in text that is interchanged.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{FDD0}'..='\u{FDEF}') || (c as u32) & 0xFFFE == 0xFFFE
}

fn wrong(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.to_owned())
}
