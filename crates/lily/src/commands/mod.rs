//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod doctor;
pub(crate) mod eval;
mod ids;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod synth;
mod writing;

use std::io;

/// Whoever reads our output has gone (`lily run ... | head -1`): not an error of ours.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// Said once wherever the demo model answers.
pub(crate) const DEMO_NOTICE: &str =
    "built-in demo model: 22 million parameters, knows little; --model names another";
