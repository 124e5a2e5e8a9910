//! Puts a pack of machine code into the program: the file that LILY_CUBINS names (scripts/release-cubins writes it), or nothing.

use std::path::{Path, PathBuf};

/// How every pack begins; src/pack.rs reads the rest when it is used.
const MAGIC: &[u8] = b"lily pack of cubins 1\n";

fn pack() -> Result<Vec<u8>, String> {
    println!("cargo::rerun-if-env-changed=LILY_CUBINS");
    let Some(named) = std::env::var_os("LILY_CUBINS").filter(|name| !name.is_empty()) else {
        return Ok(Vec::new());
    };
    // Cargo runs this in the crate's folder; a name that is not absolute is one from the root of the workspace.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(named);
    println!("cargo::rerun-if-changed={}", file.display());
    let bytes = std::fs::read(&file).map_err(|e| format!("LILY_CUBINS={}: {e}", file.display()))?;
    if !bytes.starts_with(MAGIC) {
        return Err(format!(
            "LILY_CUBINS={} is no pack of this version; write one with scripts/release-cubins",
            file.display()
        ));
    }
    Ok(bytes)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let written = pack().and_then(|bytes| {
        let file = folder.join("cubins.pack");
        std::fs::write(&file, bytes).map_err(|e| format!("{}: {e}", file.display()))
    });
    if let Err(error) = written {
        println!("cargo::error={error}");
    }
}
