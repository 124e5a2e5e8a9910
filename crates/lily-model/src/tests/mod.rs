//! Tests of opening whole models.

mod formats;
mod loads;

use std::path::PathBuf;

/// A folder of the repository's fixtures.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// The folder of the demo model.
fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo")
}
