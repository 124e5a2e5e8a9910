//! The layout of activations in one block of memory.

use std::ops::Range;

use super::{Buffer, View};

/// Every region starts at a multiple of this many bytes: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A stack of regions. Regions are freed by going back to a mark, so that the mixer and the experts of a layer, and all
/// layers, share memory.
#[derive(Debug, Default)]
pub(super) struct Arena {
    top: usize,
    peak: usize,
}

impl Arena {
    /// A region of `len` four-byte elements.
    pub(super) fn take(&mut self, len: usize) -> View {
        let start = self.top;
        self.top = (start + 4 * len).next_multiple_of(ALIGN);
        self.peak = self.peak.max(self.top);
        View { buffer: Buffer::Arena, bytes: start..start + 4 * len }
    }

    /// The current top, to come back to.
    pub(super) fn mark(&self) -> usize {
        self.top
    }

    /// Frees what was taken since the mark.
    pub(super) fn release(&mut self, mark: usize) {
        self.top = mark;
    }

    /// Bytes needed in all.
    pub(super) fn peak(&self) -> usize {
        self.peak
    }
}

/// The rows `rows` of a region of rows of `width` four-byte elements.
pub(super) fn rows_of(view: &View, rows: Range<usize>, width: usize) -> View {
    let bytes = view.bytes.start + 4 * rows.start * width..view.bytes.start + 4 * rows.end * width;
    View { buffer: view.buffer, bytes }
}
