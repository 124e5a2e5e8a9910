//! Makes the typed bindings of `src/**/*.metal`: for each file a module with its flattened text, the indices of its buffers,
//! its parameters and its function constants, so that each is written once, in the text.

#![allow(clippy::unwrap_used, reason = "a build script fails by panicking")]

#[path = "build/reader.rs"]
mod reader;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The Metal files below a folder, in order.
fn metal_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            metal_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "metal") {
            found.push(path);
        }
    }
}

/// The text with its own headers pasted in, once each: `newLibraryWithSource` has no include path.
fn flatten(text: &str, headers: &Path, seen: &mut BTreeSet<String>) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.trim().strip_prefix("#include \"").and_then(|l| l.strip_suffix('"')) {
            Some(name) => {
                if seen.insert(name.to_owned()) {
                    let header = fs::read_to_string(headers.join(name));
                    let header = header.unwrap_or_else(|e| panic!("msl/{name}: {e}"));
                    out.push_str(&flatten(&header, headers, seen));
                }
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

fn rust_type(kind: &str) -> &'static str {
    match kind {
        "uint" => "u32",
        "int" => "i32",
        "float" => "f32",
        "bool" => "bool",
        other => panic!("no scalar type of bindings: {other}"),
    }
}

/// A struct of scalars and the function that gives its words.
fn words(out: &mut String, name: &str, what: &str, fields: &[reader::Field]) {
    let _ = writeln!(out, "    /// {what}");
    let _ =
        writeln!(out, "    #[derive(Clone, Copy, Debug)]\n    #[allow(missing_docs)] // named in the text");
    let _ = writeln!(out, "    pub struct {name} {{");
    for f in fields {
        let _ = writeln!(out, "        pub {}: {},", f.name.to_lowercase(), rust_type(&f.kind));
    }
    let _ = writeln!(
        out,
        "    }}\n    impl {name} {{\n        /// In the order of the text.\n        pub fn words(&self) -> Vec<u32> {{\n            vec!["
    );
    for f in fields {
        let value = format!("self.{}", f.name.to_lowercase());
        let word = match f.kind.as_str() {
            "uint" => value,
            "int" => format!("{value}.cast_unsigned()"),
            "float" => format!("{value}.to_bits()"),
            _ => format!("u32::from({value})"),
        };
        let _ = writeln!(out, "                {word},");
    }
    let _ = writeln!(out, "            ]\n        }}\n    }}");
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let (sources, headers) = (root.join("src"), root.join("msl"));
    for path in ["src", "msl", "build"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let mut files = Vec::new();
    metal_files(&sources, &mut files);
    let mut out = String::from("/// Every text, by name.\npub static TEXTS: &[&super::Text] = &[\n");
    let names = files.iter().map(|f| f.file_stem().unwrap().to_str().unwrap());
    let unique: BTreeSet<&str> = names.clone().collect();
    assert_eq!(unique.len(), files.len(), "two Metal files have one name");
    names.for_each(|name| writeln!(out, "    &{name}::TEXT,").unwrap());
    out.push_str("];\n");
    for path in &files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(path).unwrap();
        let file = reader::read(name, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let flat = flatten(&text, &headers, &mut BTreeSet::new());
        let relative = path.strip_prefix(&root).unwrap().display().to_string();
        let _ = writeln!(
            out,
            "/// `{relative}`.\npub mod {name} {{\n    /// The text and what it takes.\n    pub static TEXT: crate::Text = crate::Text {{"
        );
        let _ = writeln!(
            out,
            "        name: {name:?},\n        path: {relative:?},\n        source: {flat:?},\n        parameters: &["
        );
        for p in &file.parameters {
            let _ = writeln!(
                out,
                "            crate::TextParameter {{ kind: {:?}, name: {:?}, attribute: {:?}, index: {} }},",
                p.kind, p.name, p.attribute, p.index
            );
        }
        let _ = writeln!(out, "        ],\n        constants: &[");
        for c in &file.constants {
            let _ = writeln!(out, "            ({:?}, {:?}),", c.kind, c.name);
        }
        let _ = writeln!(out, "        ],\n    }};");
        words(&mut out, "Params", "What is passed by value.", &file.params);
        words(&mut out, "Constants", "Fixed when the pipeline is made.", &file.constants);
        out.push_str("}\n");
    }
    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("bindings.rs");
    fs::write(target, out).unwrap();
}
