//! `docs/api.md`, generated from the tables that the server obeys.

use std::fmt::Write;

use crate::errors::TABLE;
use crate::fields::{CHAT, Class, Field};

const OPENING: &str = include_str!("api_opening.md");

/// The text of `docs/api.md`.
pub fn api_reference() -> String {
    let mut out = String::from(OPENING);
    out.push_str("\n## Request fields of `POST /v1/chat/completions`\n\n");
    out.push_str("`null` counts as absent everywhere.\n\n### Supported\n\n| Field | Value | Meaning |\n|---|---|---|\n");
    for field in of_class(|class| class == Class::Supported) {
        let _ = writeln!(out, "| `{}` | {} | {} |", field.name, cell(field.accepts), cell(field.doc));
    }
    out.push_str("\n### Accepted without effect on the answer\n\n");
    out.push_str(
        "Names that are not listed on this page belong here too; the server logs each of them once.\n\n",
    );
    out.push_str("| Field | Value | Why |\n|---|---|---|\n");
    for field in of_class(|class| class == Class::Accepted) {
        let _ = writeln!(out, "| `{}` | {} | {} |", field.name, cell(field.accepts), cell(field.doc));
    }
    out.push_str(
        "\n### Refused\n\nThese would change the answer and are not offered: a 400 that names the field, ",
    );
    out.push_str("unless the value asks for nothing.\n\n| Field | Values that ask for nothing | Note |\n|---|---|---|\n");
    for field in CHAT {
        if let Class::Refused { unless } = field.class {
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

fn of_class(wanted: impl Fn(Class) -> bool) -> impl Iterator<Item = &'static Field> {
    CHAT.iter().filter(move |field| wanted(field.class))
}

/// A bar inside a table cell would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
