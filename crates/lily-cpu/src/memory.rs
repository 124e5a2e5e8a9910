//! The bytes behind a launch's bindings, and how tasks get at them.

use lily_kernels::PlainType;

use crate::rounded::Rows;
use crate::state::PageTable;

/// A block of memory that starts on a cache line.
#[derive(Debug, Default)]
pub(crate) struct Block {
    lines: Vec<Line>,
}

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
struct Line(#[allow(dead_code)] [u8; 64]); // read through the block's pointer only

impl Block {
    /// Makes the block at least `bytes` long. New memory is zero; old contents are not kept.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), usize> {
        let lines = bytes.div_ceil(64);
        if self.lines.len() < lines {
            let mut fresh = Vec::new();
            fresh.try_reserve_exact(lines).map_err(|_| bytes)?;
            fresh.resize(lines, Line([0; 64]));
            self.lines = fresh;
        }
        Ok(())
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// `len` f32 from `start` (in f32) on.
    pub(crate) fn f32(&self, start: usize, len: usize) -> &[f32] {
        assert!(4 * (start + len) <= self.bytes());
        // SAFETY: within the block (asserted), aligned to 64 bytes, initialised, and any bits are an f32.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<f32>().add(start), len) }
    }
}

/// What one binding of a launch resolves to.
#[derive(Clone, Copy)]
pub(crate) enum Bound<'a> {
    /// Memory that nobody writes while the plan runs.
    Constant(&'a [u8]),
    /// Memory that launches write: where, and how many bytes.
    Mutable(*mut u8, usize),
    /// Keys or values of a sequence, in pages.
    Paged(PageTable<'a>),
}

/// The bindings of one launch.
///
/// Tasks of a launch, and launches of a stage, share these without locks. That is sound because of two rules: a plan's
/// stages hold no launch that touches bytes which another launch of the stage writes ([`lily_model::plan::stages`]), and
/// a kernel's tasks write disjoint parts of their outputs and read no part that another task of the launch writes.
pub(crate) struct Args<'a> {
    bound: Vec<Bound<'a>>,
    rounded: Option<Rows<'a>>,
}

// SAFETY: see the rules above; the pointers are used only while the plan runs, within the device's `run`.
unsafe impl Sync for Args<'_> {}
// SAFETY: as for Sync.
unsafe impl Send for Args<'_> {}

impl<'a> Args<'a> {
    /// With `rounded`, products take their activations from there.
    pub(crate) fn new(bound: Vec<Bound<'a>>, rounded: Option<Rows<'a>>) -> Self {
        Args { bound, rounded }
    }

    /// The launch's activations as integers, if its products take them so.
    pub(crate) fn rounded(&self) -> Option<Rows<'a>> {
        self.rounded
    }

    /// Bytes of a tensor.
    pub(crate) fn bytes(&self, i: usize) -> &[u8] {
        match self.bound[i] {
            Bound::Constant(bytes) => bytes,
            // SAFETY: valid for its length, and read under the rules of the type.
            Bound::Mutable(p, len) => unsafe { std::slice::from_raw_parts(p, len) },
            Bound::Paged(_) => panic!("binding {i} is paged"),
        }
    }

    /// An f32 operand that this task may read.
    pub(crate) fn f32(&self, i: usize) -> &[f32] {
        let (p, len) = self.mutable(i);
        // SAFETY: valid and aligned (checked by `mutable`), and read under the rules of the type.
        unsafe { std::slice::from_raw_parts(p.cast::<f32>(), len / 4) }
    }

    /// A u32 operand that this task may read.
    pub(crate) fn u32(&self, i: usize) -> &[u32] {
        let (p, len) = self.mutable(i);
        // SAFETY: valid and aligned (checked by `mutable`), and read under the rules of the type.
        unsafe { std::slice::from_raw_parts(p.cast::<u32>(), len / 4) }
    }

    /// `len` f32 of an output from `start` on.
    ///
    /// # Safety
    /// No other task touches these values while the slice lives.
    #[allow(clippy::mut_from_ref)] // the rules of the type stand in for the borrow checker
    pub(crate) unsafe fn f32_mut(&self, i: usize, start: usize, len: usize) -> &mut [f32] {
        let (p, bytes) = self.mutable(i);
        assert!(4 * (start + len) <= bytes, "binding {i}: {start} + {len} f32 of {bytes} bytes");
        // SAFETY: within the operand (asserted), aligned, and not touched by others (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(p.cast::<f32>().add(start), len) }
    }

    /// The same for u32.
    ///
    /// # Safety
    /// No other task touches these values while the slice lives.
    #[allow(clippy::mut_from_ref)] // the rules of the type stand in for the borrow checker
    pub(crate) unsafe fn u32_mut(&self, i: usize, start: usize, len: usize) -> &mut [u32] {
        let (p, bytes) = self.mutable(i);
        assert!(4 * (start + len) <= bytes, "binding {i}: {start} + {len} u32 of {bytes} bytes");
        // SAFETY: within the operand (asserted), aligned, and not touched by others (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(p.cast::<u32>().add(start), len) }
    }

    /// Where an output's `len` f32 from `start` on stand, for a task that writes only some of them.
    pub(crate) fn f32_ptr(&self, i: usize, start: usize, len: usize) -> *mut f32 {
        let (p, bytes) = self.mutable(i);
        assert!(4 * (start + len) <= bytes, "binding {i}: {start} + {len} f32 of {bytes} bytes");
        // SAFETY: within the operand (asserted).
        unsafe { p.cast::<f32>().add(start) }
    }

    /// Keys or values of a slot.
    pub(crate) fn pages(&self, i: usize) -> PageTable<'a> {
        match self.bound[i] {
            Bound::Paged(table) => table,
            _ => panic!("binding {i} is not paged"),
        }
    }

    /// A plain tensor as f32.
    pub(crate) fn plain(&self, i: usize, kind: PlainType, out: &mut [f32]) {
        kind.read(self.bytes(i), 0, out);
    }

    fn mutable(&self, i: usize) -> (*mut u8, usize) {
        match self.bound[i] {
            Bound::Mutable(p, len) => {
                assert!(p.addr() % 4 == 0, "binding {i} is not aligned");
                (p, len)
            }
            _ => panic!("binding {i} is not plain memory"),
        }
    }
}
