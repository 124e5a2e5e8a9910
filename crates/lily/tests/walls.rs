//! The walls of ARCHITECTURE.md, held against the manifests: which crate may use which, directly or through others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Every crate of the workspace and the crates of the workspace that it uses.
const WALLS: &[(&str, &[&str])] = &[
    (
        "lily",
        &[
            "lily-cpu",
            "lily-cuda",
            "lily-emu",
            "lily-engine",
            "lily-metal",
            "lily-model",
            "lily-protocol",
            "lily-server",
            "lily-text",
        ],
    ),
    ("lily-cpu", &["lily-kernels", "lily-model"]),
    ("lily-cuda", &["lily-kernels", "lily-model"]),
    ("lily-emu", &["lily-kernels", "lily-model"]),
    ("lily-engine", &["lily-model", "lily-protocol"]),
    ("lily-kernels", &[]),
    ("lily-metal", &["lily-kernels", "lily-model"]),
    ("lily-model", &["lily-kernels"]),
    ("lily-protocol", &[]),
    ("lily-scripted", &["lily-protocol", "lily-server", "lily-text"]),
    ("lily-server", &["lily-protocol", "lily-text"]),
    ("lily-text", &[]),
];

/// Crates that may hold `unsafe` code: devices anywhere, the model in its memory map only.
const MAY_BE_UNSAFE: &[&str] = &["lily-cpu", "lily-cuda", "lily-emu", "lily-metal", "lily-model"];

/// Libraries of text, of tensors and of HTTP, which give a wall away where they do not belong.
const FOREIGN: &[(&str, &[&str])] = &[
    ("lily-text", &["safetensors", "memmap2", "axum", "tokio"]),
    ("lily-server", &["safetensors", "memmap2", "tokenizers", "minijinja"]),
    ("lily-engine", &["tokenizers", "minijinja", "axum", "safetensors", "memmap2"]),
    ("lily-model", &["tokenizers", "minijinja", "axum", "tokio"]),
    ("lily-kernels", &["tokenizers", "minijinja", "axum", "tokio", "memmap2"]),
    ("lily-cpu", &["tokenizers", "minijinja", "axum", "tokio", "memmap2"]),
    ("lily-cuda", &["tokenizers", "minijinja", "axum", "tokio", "memmap2"]),
    ("lily-metal", &["tokenizers", "minijinja", "axum", "tokio", "memmap2"]),
    ("lily-emu", &["tokenizers", "minijinja", "axum", "tokio", "memmap2"]),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// For each crate of the workspace, the names of its ordinary dependencies.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let name = |v: &serde_json::Value| v["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let ordinary = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|d| d["kind"].is_null()).map(name).collect()
    };
    packages.map(|package| (name(package), ordinary(package))).collect()
}

#[test]
fn each_crate_uses_only_what_its_wall_allows() {
    let found = dependencies();
    let own: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(own, WALLS.iter().map(|w| w.0).collect(), "a crate without a wall, or a wall without a crate");
    for (name, allowed) in WALLS {
        let used: BTreeSet<&str> =
            found[*name].iter().map(String::as_str).filter(|d| own.contains(d)).collect();
        assert_eq!(used, allowed.iter().copied().collect(), "what {name} uses of the workspace");
    }
    for (name, forbidden) in FOREIGN {
        for dependency in *forbidden {
            assert!(
                !found[*name].contains(*dependency),
                "{name} uses {dependency}, which is on the other side of a wall"
            );
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_device_crates_and_the_memory_map() {
    for (name, _) in WALLS {
        let source = root().join("crates").join(name).join("src");
        for entry in ["lib.rs", "main.rs"].map(|f| source.join(f)).into_iter().filter(|f| f.exists()) {
            let forbids = std::fs::read_to_string(&entry).unwrap().contains("#![forbid(unsafe_code)]");
            assert_eq!(forbids, !MAY_BE_UNSAFE.contains(name), "{}", entry.display());
        }
    }
    let mut folders = vec![root().join("crates/lily-model/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if !entry.ends_with("checkpoint/mapping.rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                assert!(
                    !text.contains("unsafe {") && !text.contains("allow(unsafe_code"),
                    "{}",
                    entry.display()
                );
            }
        }
    }
}

#[test]
fn every_crate_has_a_paragraph_in_the_architecture() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (name, _) in WALLS {
        assert!(text.contains(&format!("**{name}**:")), "ARCHITECTURE.md says nothing of {name}");
    }
}
