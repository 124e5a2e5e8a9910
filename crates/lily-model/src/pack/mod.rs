//! Packed checkpoints: the same tensors in a file that a GPU can use where it is mapped, without a copy.
//!
//! A packed folder is a checkpoint like any other, which every device reads: `model.safetensors` with each tensor at the start of a page
//! ([`PAGE`]), and those that a device puts one below the other ([`crate::Packing`]) one behind the other. What is between them are
//! tensors of zeros that nobody reads. `lily-pack.json` beside it says what it was made of and holds checksums ([`Manifest`]).

mod file;
mod manifest;
#[cfg(test)]
mod tests;
mod verify;

pub use file::{documents, files};
pub use manifest::{Manifest, SourceFile};
pub use verify::verify;

/// Pages of Apple's processors, which are the largest there are.
pub const PAGE: usize = 16 << 10;

/// The file that makes a folder a packed one.
pub const MANIFEST: &str = "lily-pack.json";

/// What the names of tensors begin with that only fill pages.
pub(crate) const PADDING: &str = "lily.padding.";

/// Bytes of which each has a checksum.
pub(crate) const PIECE: u64 = 64 << 20;

/// `9f86d081...`, as other tools print it.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
