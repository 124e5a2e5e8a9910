//! On a Mac that has Apple's Metal compiler, a release build has every text compiled, so that a start compiles none. Where that cannot be, texts
//! are compiled by macOS when the program starts, which a warning says; elsewhere there is nothing to be done.

#[path = "build/offline.rs"]
mod offline;

use std::path::{Path, PathBuf};

use offline::{Made, Unit};

#[cfg(target_os = "macos")]
fn units() -> Option<Vec<Unit>> {
    Some(offline::units())
}

#[cfg(not(target_os = "macos"))]
fn units() -> Option<Vec<Unit>> {
    None
}

fn made(folder: &Path) -> Made {
    let Some(units) = units() else {
        return Made::none(&format!("it was built on {}", std::env::consts::OS));
    };
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("macos") {
        return Made::none("it was built for another system");
    }
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return Made::none("it is not a release build");
    }
    offline::make(Path::new("/usr/bin/xcrun"), folder, &units).unwrap_or_else(|why| {
        let line = why.replace('\n', " | ");
        println!("cargo::warning=kernels will be compiled when lily starts, because {line}");
        Made::none(&line)
    })
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    // Which Xcode it is.
    println!("cargo::rerun-if-env-changed=DEVELOPER_DIR");
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let file = folder.join("offline.rs");
    if let Err(error) = std::fs::write(&file, made(&folder).rust()) {
        println!("cargo::error={}: {error}", file.display());
    }
}
