//! The layout of activations in one block of memory.

use std::ops::Range;

use lily_kernels::{Activation, Element};

use super::{Buffer, View};

/// Every region starts at a multiple of this many bytes: a cache line, the widest vector, and what GPUs want of a binding.
const ALIGN: usize = 256;

/// A stack of regions. Regions are freed by going back to a mark, so that the mixer and the experts of a layer, and all
/// layers, share memory.
#[derive(Debug)]
pub(super) struct Arena {
    activation: Activation,
    top: usize,
    peak: usize,
}

impl Arena {
    pub(super) fn new(activation: Activation) -> Self {
        Arena { activation, top: 0, peak: 0 }
    }

    /// A region of `len` activations.
    pub(super) fn take(&mut self, len: usize) -> View {
        self.bytes(self.activation.bytes() * len)
    }

    /// A region of `len` four-byte elements.
    pub(super) fn words(&mut self, len: usize) -> View {
        self.bytes(4 * len)
    }

    fn bytes(&mut self, len: usize) -> View {
        let start = self.top;
        self.top = (start + len).next_multiple_of(ALIGN);
        self.peak = self.peak.max(self.top);
        View { buffer: Buffer::Arena, bytes: start..start + len }
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

    /// Bytes of an element.
    pub(super) fn size(&self, element: Element) -> usize {
        element.bytes(self.activation).unwrap_or(1)
    }
}

/// The rows `rows` of a region of rows of `width` four-byte elements.
pub(super) fn rows_of(view: &View, rows: Range<usize>, width: usize) -> View {
    let bytes = view.bytes.start + 4 * rows.start * width..view.bytes.start + 4 * rows.end * width;
    View { buffer: view.buffer, bytes }
}

/// The elements `elements` of a region, of `size` bytes each.
pub(super) fn part_of(view: &View, elements: Range<usize>, size: usize) -> View {
    let bytes = view.bytes.start + size * elements.start..view.bytes.start + size * elements.end;
    View { buffer: view.buffer, bytes }
}
