//! Tests of opening whole models: what must open, what must be refused and how.

mod bad_checkpoints;
mod bad_configs;
mod formats;
mod loads;
mod mutations;

use std::{path::PathBuf, sync::LazyLock, time::Instant};

use crate::{
    MemoryModel, Model, ModelError,
    testing::{Spec, memory_model},
};

/// A folder of the repository's fixtures.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// The folder of the demo model.
fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo")
}

/// The files of the tiny model.
fn tiny() -> MemoryModel {
    static TINY: LazyLock<MemoryModel> = LazyLock::new(|| memory_model(&Spec::tiny()));
    TINY.clone()
}

/// Opens a model as a user would wait for it: under a second, whatever comes out. Where other programs keep the machine
/// busy, one of three attempts must be.
fn open_quickly(parts: MemoryModel) -> Result<Model, ModelError> {
    for _ in 0..2 {
        let (parts, start) = (parts.clone(), Instant::now());
        let result = Model::from_memory(parts);
        if start.elapsed().as_secs_f64() < 1.0 {
            return result;
        }
    }
    let start = Instant::now();
    let result = Model::from_memory(parts);
    assert!(start.elapsed().as_secs_f64() < 1.0, "opening took {:?}", start.elapsed());
    result
}

/// The error of a model that must not open.
fn refused(parts: MemoryModel) -> ModelError {
    match open_quickly(parts) {
        Ok(_) => panic!("this model must not open"),
        Err(error) => error,
    }
}
