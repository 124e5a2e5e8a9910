//! How the GPU of a Mac is used.

use clap::{Args, ValueEnum};
use lily_metal::QueueChoice;
use lily_metal::gpu::QueueKind;

/// Flags of the GPU of a Mac.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct MetalFlags {
    /// Queue of the GPU of a Mac: auto (that of Metal 4 where a trial finds that it works, the default), classic, or metal4 (an error where it does
    /// not work).
    #[arg(long, env = "LILY_METAL_QUEUE", value_name = "QUEUE", value_enum)]
    pub(crate) metal_queue: Option<MetalQueue>,
}

/// How commands reach the GPU of a Mac.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetalQueue {
    /// The newest that works.
    Auto,
    /// Command buffers that know what they use.
    Classic,
    /// Metal 4: argument tables, and barriers for everything.
    Metal4,
}

impl MetalFlags {
    /// What they ask of the device.
    pub(crate) fn choice(self) -> QueueChoice {
        match self.metal_queue {
            None | Some(MetalQueue::Auto) => QueueChoice::Auto,
            Some(MetalQueue::Classic) => QueueChoice::Only(QueueKind::Classic),
            Some(MetalQueue::Metal4) => QueueChoice::Only(QueueKind::Metal4),
        }
    }
}
