//! Reads Metal files for what launches them. One kernel a file, named as the file:
//!
//! ```text
//! FUNCTION_CONSTANT(uint, BITS, 0);
//! struct MatmulParams { uint rows; float eps; };
//! kernel void matmul(device const ACT* x [[buffer(0)]], ..., constant MatmulParams& p [[buffer(5)]],
//!                    uint3 group [[threadgroup_position_in_grid]]) { ... }
//! ```
//!
//! A parameter has one attribute: `[[buffer(n)]]`, `TG_PARAM(n)`, or one that tells a thread its place. No templates with
//! `host_name`, textures or argument buffers.

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Its type, blanks normalized: `device const ACT*`.
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
    /// Its attribute: `buffer`, `TG_PARAM`, `thread_index_in_simdgroup`.
    pub(crate) attribute: String,
    /// The attribute's number.
    pub(crate) index: usize,
}

impl Parameter {
    /// True if the launch passes the parameter's bytes and not an address.
    pub(crate) fn is_value(&self) -> bool {
        self.attribute == "buffer" && self.kind.ends_with('&')
    }
}

/// A named 4-byte scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// `uint`, `int`, `float` or, for a function constant, `bool`.
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
}

/// What a Metal file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// The kernel's parameters, in order.
    pub(crate) parameters: Vec<Parameter>,
    /// Function constants by index.
    pub(crate) constants: Vec<Field>,
    /// Fields of the struct that is passed by value; empty without one.
    pub(crate) params: Vec<Field>,
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        out.push_str(&rest[..at]);
        let tail = &rest[at..];
        let end = if tail.starts_with("//") { tail.find('\n') } else { tail.find("*/").map(|e| e + 2) };
        rest = &tail[end.unwrap_or(tail.len())..];
    }
    out + rest
}

/// Splits at commas outside of brackets.
fn pieces(text: &str) -> Vec<String> {
    let (mut depth, mut all, mut piece) = (0, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            all.push(std::mem::take(&mut piece));
        } else {
            piece.push(c);
        }
    }
    all.push(piece);
    all.into_iter().map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn parameter(piece: &str) -> Result<Parameter, String> {
    let bad = || format!("a parameter needs the form `type name [[attribute]]`: {piece}");
    let (head, attribute) = if let Some(at) = piece.find("TG_PARAM(") {
        (&piece[..at], piece[at..].trim())
    } else {
        let at = piece.find("[[").ok_or_else(bad)?;
        (
            &piece[..at],
            piece[at..].trim().strip_prefix("[[").and_then(|a| a.strip_suffix("]]")).ok_or_else(bad)?,
        )
    };
    let (attribute, index) = match attribute.split_once('(') {
        Some((name, number)) => {
            (name.trim(), number.trim_end_matches(')').trim().parse().map_err(|_| bad())?)
        }
        None => (attribute.trim(), 0),
    };
    if attribute == "threadgroup" {
        return Err(format!("write TG_PARAM({index}) in place of [[threadgroup({index})]]: {piece}"));
    }
    let head = head.trim();
    let at = head.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).ok_or_else(bad)?;
    let (kind, name) = head.split_at(at + 1);
    Ok(Parameter {
        kind: kind.trim().to_owned(),
        name: name.to_owned(),
        attribute: attribute.to_owned(),
        index,
    })
}

fn fields(text: &str, name: &str) -> Result<Vec<Field>, String> {
    let start = text.find(&format!("struct {name} {{")).ok_or(format!("struct {name} is not in the file"))?;
    let body = &text[start + name.len() + 9..];
    let body = &body[..body.find('}').ok_or(format!("struct {name} has no end"))?];
    let mut all = Vec::new();
    for line in body.split(';').map(str::trim).filter(|l| !l.is_empty()) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [kind @ ("uint" | "int" | "float"), name] => {
                all.push(Field { kind: kind.into(), name: name.into() });
            }
            _ => return Err(format!("struct {name} takes `uint`, `int` or `float` and one name: {line}")),
        }
    }
    Ok(all)
}

/// Reads the file of kernel `name`.
pub(crate) fn read(name: &str, text: &str) -> Result<File, String> {
    let text = without_comments(text);
    let head = format!("kernel void {name}(");
    let start = text.find(&head).ok_or(format!("`{head}` is not in the file"))? + head.len();
    if text.matches("kernel void ").count() != 1 {
        return Err("a file holds one kernel".into());
    }
    let mut depth = 1;
    let len = text[start..].find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let list = &text[start..start + len.ok_or("the kernel's parameters have no end")?];
    let parameters = pieces(list).iter().map(|p| parameter(p)).collect::<Result<Vec<_>, _>>()?;
    let buffers = parameters.iter().filter(|p| p.attribute == "buffer");
    if buffers.enumerate().any(|(i, p)| p.index != i) {
        return Err("buffers are numbered from 0 in the order of the parameters".into());
    }
    let mut constants = Vec::new();
    for found in text.split("FUNCTION_CONSTANT(").skip(1) {
        let inside = pieces(&found[..found.find(')').ok_or("FUNCTION_CONSTANT( has no end")?]);
        match &inside[..] {
            [kind, name, index] if *index == constants.len().to_string() => {
                constants.push(Field { kind: kind.clone(), name: name.clone() });
            }
            _ => return Err(format!("function constants are numbered from 0 in their order: {inside:?}")),
        }
    }
    let value = parameters.iter().find(|p| p.is_value());
    let params = match value {
        Some(p) => fields(&text, p.kind.trim_start_matches("constant").trim_end_matches('&').trim())?,
        None => Vec::new(),
    };
    Ok(File { parameters, constants, params })
}
