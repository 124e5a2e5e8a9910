//! How far a device is with what takes a while.

use std::sync::Arc;

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Kernels are compiled, or read from disk.
    Compiling {
        /// Those that are ready.
        done: usize,
        /// All that are needed now.
        of: usize,
    },
    /// Weights are copied to where the device reads them.
    Loading {
        /// Bytes that are there.
        bytes: usize,
        /// All.
        of: usize,
    },
}

/// Who is told of progress; on any thread.
pub type Watch = Arc<dyn Fn(Progress) + Send + Sync>;
