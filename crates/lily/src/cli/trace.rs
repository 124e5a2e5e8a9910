//! The flag that asks for a trace.

use std::path::PathBuf;

use clap::Args;

/// Where times go.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TraceFlags {
    /// Write when each stage ran on the device, in Chrome's format, for ui.perfetto.dev or chrome://tracing: on the CPU and on the GPU of a
    /// Mac, which is slower then. The file is whole at any moment, and replaced where there is one.
    #[arg(long, env = "LILY_TRACE", value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}
