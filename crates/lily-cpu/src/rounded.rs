//! Activations as integers: rows of 16-bit values with a scale for each group, as integer products want them.

use std::marker::PhantomData;

/// Inputs of a chunk: 64 bytes of packed four-bit weights.
pub(crate) const CHUNK: usize = 128;

/// Inputs of a run.
pub(crate) const RUN: usize = 8;

/// Bytes of a run of activations.
pub(crate) const RUN_BYTES: usize = 2 * RUN;

/// The largest integer, whose high half is 127 and low half 0: the range is symmetric, so that -x rounds as x does.
pub(crate) const LARGEST: f32 = 32_512.0;

/// How a row lies in memory.
///
/// First its values, each 256 * high + low with signed halves, because processors multiply bytes. Of each [`RUN`] of inputs:
/// the high halves of the four with even numbers, those of the four with odd ones, because the low and high halves of packed
/// bytes are weights of even and odd inputs, then the low halves in the same order; behind the last input zeros up to a whole
/// chunk. Then f32 for each group: the scale, and after all scales the sum of the group's values times its scale, which is
/// what an affine weight's bias meets. Rows begin on cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowShape {
    /// Inputs of a row.
    pub(crate) cols: usize,
    /// Inputs of a group: those of the matrix.
    pub(crate) group: usize,
}

impl RowShape {
    fn groups(self) -> usize {
        self.cols / self.group
    }

    fn values(self) -> usize {
        self.cols.next_multiple_of(CHUNK) / RUN * RUN_BYTES
    }

    /// From row to row.
    pub(crate) fn bytes(self) -> usize {
        (self.values() + 8 * self.groups()).next_multiple_of(64)
    }
}

/// One row, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Whole chunks.
    pub(crate) values: &'a [i8],
    /// For each group.
    pub(crate) scales: &'a [f32],
    /// For each group: scale * sum of its values.
    pub(crate) sums: &'a [f32],
}

/// One row, to be written.
pub(crate) struct RowMut<'a> {
    pub(crate) values: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [f32],
}

/// All rows of an operand.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    start: *mut u8,
    rows: usize,
    shape: RowShape,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: rows are read through it under the rules of `crate::memory::Args`, and written only before a stage runs, each row
// by one task (`Rows::write`).
unsafe impl Sync for Rows<'_> {}
// SAFETY: as for Sync.
unsafe impl Send for Rows<'_> {}

impl<'a> Rows<'a> {
    /// # Safety
    /// `start` is aligned to 64 bytes and valid for `rows * shape.bytes()` initialised bytes as long as 'a, during which
    /// they are touched through this and copies of it only.
    pub(crate) unsafe fn new(start: *mut u8, rows: usize, shape: RowShape) -> Self {
        Rows { start, rows, shape, memory: PhantomData }
    }

    pub(crate) fn shape(&self) -> RowShape {
        self.shape
    }

    fn parts(&self, row: usize) -> (*mut i8, *mut f32, *mut f32) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row is inside (asserted), and its parts lie within its bytes (`RowShape::bytes`).
        unsafe {
            let values = self.start.add(row * self.shape.bytes());
            let scales = values.add(self.shape.values()).cast::<f32>();
            (values.cast(), scales, scales.add(self.shape.groups()))
        }
    }

    /// A row.
    pub(crate) fn row(&self, row: usize) -> Row<'a> {
        let (values, scales, sums) = self.parts(row);
        let groups = self.shape.groups();
        // SAFETY: parts of a row do not overlap and are initialised, and nobody writes them while they are read.
        unsafe {
            Row {
                values: std::slice::from_raw_parts(values, self.shape.values()),
                scales: std::slice::from_raw_parts(scales, groups),
                sums: std::slice::from_raw_parts(sums, groups),
            }
        }
    }

    /// A row to write.
    ///
    /// # Safety
    /// Nobody else touches the row while the parts live.
    pub(crate) unsafe fn write(&self, row: usize) -> RowMut<'a> {
        let (values, scales, sums) = self.parts(row);
        let groups = self.shape.groups();
        // SAFETY: parts of a row do not overlap and are initialised; exclusive by the caller's promise.
        unsafe {
            RowMut {
                values: std::slice::from_raw_parts_mut(values, self.shape.values()),
                scales: std::slice::from_raw_parts_mut(scales, groups),
                sums: std::slice::from_raw_parts_mut(sums, groups),
            }
        }
    }
}
