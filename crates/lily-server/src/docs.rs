//! `docs/api.md`, generated from the tables that the server obeys.

use std::fmt::Write;

use crate::errors::TABLE;
use crate::fields::{Class, Family, Field};
use crate::tables::{CHAT, FAMILIES};

const OPENING: &str = include_str!("api_opening.md");

/// The text of `docs/api.md`.
pub fn api_reference() -> String {
    let mut out = String::from(OPENING);
    out.push_str("\n## Request fields\n\n`null` counts as absent everywhere. Names that are not listed have no effect either; ");
    out.push_str(
        "the server logs each of them once. What chat completions accept without effect or refuse, ",
    );
    out.push_str("the other families do too, unless their own table says otherwise.\n");
    for family in FAMILIES {
        let _ = write!(out, "\n### `{}`\n\n| Field | Value | Meaning |\n|---|---|---|\n", family.route);
        for field in own(family, |class| class == Class::Supported) {
            let _ = writeln!(out, "| `{}` | {} | {} |", field.name, cell(field.accepts), cell(field.doc));
        }
        let shared: Vec<String> = shared(family).map(|field| format!("`{}`", field.name)).collect();
        if !shared.is_empty() {
            let _ = write!(out, "\nAs for chat completions: {}.\n", shared.join(", "));
        }
        if own(family, |class| class == Class::Accepted).next().is_some() {
            out.push_str(
                "\nAccepted without effect on the answer:\n\n| Field | Value | Why |\n|---|---|---|\n",
            );
        }
        for field in own(family, |class| class == Class::Accepted) {
            let _ = writeln!(out, "| `{}` | {} | {} |", field.name, cell(field.accepts), cell(field.doc));
        }
        out.push_str(
            "\nRefused, since they would change the answer and are not offered: a 400 that names the field, ",
        );
        out.push_str("unless the value asks for nothing.\n\n");
        out.push_str("| Field | Values that ask for nothing | Note |\n|---|---|---|\n");
        for field in own(family, |class| matches!(class, Class::Refused { .. })) {
            let Class::Refused { unless } = field.class else { continue };
            let values: Vec<String> = unless.iter().map(|text| format!("`{}`", cell(text))).collect();
            let _ = writeln!(out, "| `{}` | {} | {} |", field.name, values.join(", "), cell(field.doc));
        }
    }
    out.push_str("\n## Errors\n\nEvery error has OpenAI's shape: ");
    out.push_str("`{\"error\": {\"message\", \"type\", \"param\", \"code\"}}`.\n\n");
    out.push_str("| Status | `code` | `type` | When |\n|---|---|---|---|\n");
    for row in &TABLE {
        let _ = writeln!(out, "| {} | `{}` | `{}` | {} |", row.status, row.code, row.class, cell(row.when));
    }
    out
}

/// Fields that are told of here: of the first family all, of others what that one has not got.
fn own(family: &'static Family, wanted: impl Fn(Class) -> bool) -> impl Iterator<Item = &'static Field> {
    family.fields().filter(move |field| wanted(field.class) && !is_shared(family, field))
}

fn shared(family: &'static Family) -> impl Iterator<Item = &'static Field> {
    family.fields().filter(|field| field.class == Class::Supported && is_shared(family, field))
}

/// The same entry as in the first family.
fn is_shared(family: &Family, field: &'static Field) -> bool {
    family.route != CHAT.route
        && CHAT
            .fields()
            .any(|other| (other.name, other.accepts, other.doc) == (field.name, field.accepts, field.doc))
}

/// A bar inside a table cell would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
