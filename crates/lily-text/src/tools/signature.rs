//! What the tools of a request say about their parameters.

use std::cell::Cell;
use std::ops::{BitAnd, BitOr};

use serde_json::Value;

/// Schemas refer to each other; a chain longer than this, or a circle, says nothing.
const LONGEST_CHAIN: usize = 16;

/// Schemas and values that are looked at for one parameter; what is behind them says nothing. Branches that refer to branches are as many as
/// their number to the power of the chain, and 1.2 KB of them would keep a thread for years.
const MOST_STEPS: usize = 4096;

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub(super) const STRING: Kinds = Kinds(1);
    pub(super) const INTEGER: Kinds = Kinds(2);
    pub(super) const NUMBER: Kinds = Kinds(4);
    pub(super) const BOOLEAN: Kinds = Kinds(8);
    pub(super) const NULL: Kinds = Kinds(16);
    pub(super) const ARRAY: Kinds = Kinds(32);
    pub(super) const OBJECT: Kinds = Kinds(64);

    /// True if they have a type in common.
    pub(super) fn meets(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    /// The types that a value belongs to: a whole number is an integer and a number.
    pub(super) fn of(value: &Value) -> Kinds {
        match value {
            Value::String(_) => Kinds::STRING,
            Value::Bool(_) => Kinds::BOOLEAN,
            Value::Null => Kinds::NULL,
            Value::Array(_) => Kinds::ARRAY,
            Value::Object(_) => Kinds::OBJECT,
            Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
                Kinds::INTEGER | Kinds::NUMBER
            }
            Value::Number(_) => Kinds::NUMBER,
        }
    }

    /// JSON Schema's names, and Python's, which tools written by hand often use.
    fn named(name: &str) -> Option<Kinds> {
        Some(match name {
            "string" | "str" => Kinds::STRING,
            "integer" | "int" => Kinds::INTEGER,
            "number" | "float" => Kinds::NUMBER,
            "boolean" | "bool" => Kinds::BOOLEAN,
            "null" => Kinds::NULL,
            "array" | "list" => Kinds::ARRAY,
            "object" | "dict" => Kinds::OBJECT,
            _ => return None,
        })
    }
}

impl BitOr for Kinds {
    type Output = Kinds;

    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

impl BitAnd for Kinds {
    type Output = Kinds;

    fn bitand(self, other: Kinds) -> Kinds {
        Kinds(self.0 & other.0)
    }
}

/// One tool: its name and the schema of its parameters (`null` if it has none).
#[derive(Clone, Debug)]
pub(super) struct Signature {
    name: String,
    parameters: Value,
}

impl Signature {
    /// From `{"type": "function", "function": {...}}` or from the inner object alone; `None` without a name.
    fn of(tool: &Value) -> Option<Signature> {
        let function = tool.get("function").unwrap_or(tool);
        let parameters = function.get("parameters").or_else(|| function.get("input_schema"));
        Some(Signature {
            name: function.get("name")?.as_str()?.to_owned(),
            parameters: parameters.cloned().unwrap_or_default(),
        })
    }

    /// The types that a parameter may have; `None` where nothing is said about it.
    pub(super) fn kinds(&self, key: &str) -> Option<Kinds> {
        let schema = self.object_schema();
        let own = schema.get("properties").and_then(|properties| properties.get(key));
        let reader = Reader { root: &self.parameters, left: Cell::new(MOST_STEPS) };
        reader.kinds(own.or_else(|| schema.get("additionalProperties"))?, LONGEST_CHAIN)
    }

    /// Whether the tool declares this parameter; `None` if it declares none at all.
    pub(super) fn declares(&self, key: &str) -> Option<bool> {
        let properties = self.object_schema().get("properties")?.as_object()?;
        (!properties.is_empty()).then(|| properties.contains_key(key))
    }

    fn object_schema(&self) -> &Value {
        referred(&self.parameters, &self.parameters).unwrap_or(&self.parameters)
    }
}

/// The tools of a request.
#[derive(Clone, Debug)]
pub(super) struct Signatures(Vec<Signature>);

impl Signatures {
    pub(super) fn new(tools: &[Value]) -> Self {
        Signatures(tools.iter().filter_map(Signature::of).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The place of a tool, for [`Signatures::at`].
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|signature| signature.name == name)
    }

    pub(super) fn at(&self, place: usize) -> Option<&Signature> {
        self.0.get(place)
    }
}

/// What `$ref` points to inside the same schema.
fn referred<'a>(schema: &Value, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// What reads a schema.
struct Reader<'a> {
    root: &'a Value,
    /// Steps that may still be taken.
    left: Cell<usize>,
}

impl Reader<'_> {
    /// The types that a schema allows. Several keywords narrow each other; those that contradict the ones before are ignored.
    fn kinds(&self, schema: &Value, chain: usize) -> Option<Kinds> {
        let chain = chain.checked_sub(1)?;
        self.step(1)?;
        let fields = schema.as_object()?;
        let inner = |schema: &Value| self.kinds(schema, chain);
        let mut found = None;
        narrow(&mut found, fields.get("type").and_then(typed));
        narrow(
            &mut found,
            fields.get("enum").and_then(Value::as_array).and_then(|values| self.of_values(values)),
        );
        narrow(&mut found, fields.get("const").map(Kinds::of));
        narrow(&mut found, referred(schema, self.root).and_then(inner));
        for name in ["anyOf", "oneOf"] {
            let branches = fields.get(name).and_then(Value::as_array);
            narrow(&mut found, branches.and_then(|branches| union(branches.iter().map(inner))));
        }
        for branch in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            // What the branches before said stands.
            if self.left.get() == 0 {
                break;
            }
            narrow(&mut found, inner(branch));
        }
        if found.is_none() {
            found = implied(schema);
        }
        let nullable = fields.get("nullable").and_then(Value::as_bool) == Some(true);
        found.map(|kinds| if nullable { kinds | Kinds::NULL } else { kinds })
    }

    /// `enum`: the types of its values.
    fn of_values(&self, values: &[Value]) -> Option<Kinds> {
        self.step(values.len())?;
        union(values.iter().map(|value| Some(Kinds::of(value))))
    }

    /// `None` if so many steps are not left: then there are none.
    fn step(&self, count: usize) -> Option<()> {
        let left = self.left.get().checked_sub(count);
        self.left.set(left.unwrap_or(0));
        left.map(|_| ())
    }
}

fn narrow(found: &mut Option<Kinds>, by: Option<Kinds>) {
    *found = match (*found, by) {
        (Some(before), Some(by)) if before.meets(by) => Some(before & by),
        (before, by) => before.or(by),
    };
}

/// `None` if one of them may be anything, or if there are none.
fn union(branches: impl Iterator<Item = Option<Kinds>>) -> Option<Kinds> {
    let mut all: Option<Kinds> = None;
    for one in branches {
        let one = one?;
        all = Some(all.map_or(one, |all| all | one));
    }
    all
}

/// `type`: a name or a list of names.
fn typed(names: &Value) -> Option<Kinds> {
    match names {
        Value::String(name) => Kinds::named(name),
        Value::Array(names) => union(names.iter().map(|name| name.as_str().and_then(Kinds::named))),
        _ => None,
    }
}

/// Keywords that speak of one type only.
fn implied(schema: &Value) -> Option<Kinds> {
    let has = |name: &str| schema.get(name).is_some();
    if has("properties") || has("additionalProperties") {
        Some(Kinds::OBJECT)
    } else if has("items") || has("prefixItems") {
        Some(Kinds::ARRAY)
    } else {
        None
    }
}
