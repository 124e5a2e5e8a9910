//! Flags of `lily pack`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::values;

/// `lily pack`.
#[derive(Debug, Args)]
#[command(after_help = "\
The folder is a model like any other: every command and device takes it, with the same results. The GPU of a Mac uses its \
weights where they are mapped, without a copy of its own. It takes as much room as the model once more; the model itself is not \
touched.

Files are written under unfinished names (*.lily-partial) and renamed when all are complete. Ctrl-C removes them; what a \
run that was killed has left, the next one into the same folder removes. --check compares every byte with the checksums of \
lily-pack.json; opening the folder compares its size and header.

Examples:
  lily pack --model mlx-community/Qwen3.6-35B-A3B-4bit --out ./packed
  lily run --model ./packed \"What is the capital of Japan?\"
  lily pack --check --model ./packed")]
pub(crate) struct PackFlags {
    /// A model folder, or ORG/NAME in the Hugging Face cache.
    #[arg(long, env = "LILY_MODEL", value_name = "MODEL", value_parser = values::model)]
    pub(crate) model: String,
    /// The folder to write: a new or an empty one.
    #[arg(
        long,
        env = "LILY_OUT",
        value_name = "DIR",
        required_unless_present = "check",
        conflicts_with = "check"
    )]
    pub(crate) out: Option<PathBuf>,
    /// Write into a folder that is not empty: replaces the model in it and leaves other files alone.
    #[arg(long, env = "LILY_FORCE", value_parser = BoolishValueParser::new(), conflicts_with = "check")]
    pub(crate) force: bool,
    /// Read all of a packed model and compare it with its checksums.
    #[arg(long, env = "LILY_CHECK", value_parser = BoolishValueParser::new())]
    pub(crate) check: bool,
}
