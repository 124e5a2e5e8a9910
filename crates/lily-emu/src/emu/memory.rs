//! Memory that kernels read and write: aligned as GPUs align buffers, and NaN until it is written.

use std::alloc::{Layout, alloc, dealloc};
use std::ops::Range;
use std::ptr::NonNull;

use lily_model::{DeviceError, device};

/// As Metal and CUDA align buffers.
const ALIGN: usize = 256;

/// What memory holds that nobody has written: NaN as any float, and no index of anything.
pub(crate) const POISON: u8 = 0xff;

/// A block of memory of its own.
pub(crate) struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block owns its memory; kernels touch it only inside `EmuDevice::run`, which has the device to itself.
unsafe impl Send for Block {}
// SAFETY: as for Send; shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    /// A poisoned block.
    pub(crate) fn new(what: &'static str, bytes: usize) -> Result<Self, DeviceError> {
        let failed = || DeviceError::OutOfMemory { what, need_bytes: bytes, left_bytes: 0 };
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(|_| failed())?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(failed)?;
        // SAFETY: as long as was allocated.
        unsafe { start.write_bytes(POISON, layout.size()) };
        Ok(Block { start, layout })
    }

    /// A copy of some bytes.
    pub(crate) fn of(what: &'static str, bytes: &[u8]) -> Result<Self, DeviceError> {
        let mut block = Block::new(what, bytes.len())?;
        block.bytes_mut(0..bytes.len()).copy_from_slice(bytes);
        Ok(block)
    }

    /// Makes the block at least `bytes` long, and poisons all of it.
    pub(crate) fn reset(&mut self, what: &'static str, bytes: usize) -> Result<(), DeviceError> {
        if self.len() < bytes {
            *self = Block::new(what, bytes)?;
        } else {
            self.bytes_mut(0..self.len()).fill(POISON);
        }
        Ok(())
    }

    /// Makes the block at least `bytes` long; what it held stays, the rest is poisoned.
    pub(crate) fn grow(&mut self, what: &'static str, bytes: usize) -> Result<(), DeviceError> {
        if self.len() < bytes {
            let mut longer = Block::new(what, bytes)?;
            longer.bytes_mut(0..self.len()).copy_from_slice(self.bytes(0..self.len()));
            *self = longer;
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Where a kernel finds the bytes.
    ///
    /// # Panics
    /// If they end behind the block.
    pub(crate) fn at(&self, bytes: &Range<usize>) -> *mut u8 {
        assert!(bytes.start <= bytes.end && bytes.end <= self.len(), "{bytes:?} of {} bytes", self.len());
        // SAFETY: inside of the block (asserted).
        unsafe { self.start.add(bytes.start) }.as_ptr()
    }

    pub(crate) fn bytes(&self, bytes: Range<usize>) -> &[u8] {
        let start = self.at(&bytes);
        // SAFETY: inside of the block (asserted), initialized since it was made, and no kernel runs (see Send).
        unsafe { std::slice::from_raw_parts(start, bytes.len()) }
    }

    pub(crate) fn bytes_mut(&mut self, bytes: Range<usize>) -> &mut [u8] {
        let start = self.at(&bytes);
        // SAFETY: as in `bytes`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(start, bytes.len()) }
    }

    /// Words at the start of the block.
    pub(crate) fn write_u32(&mut self, words: &[u32]) {
        self.write_u32_at(0, words);
    }

    /// Words from word number `at` on.
    pub(crate) fn write_u32_at(&mut self, at: usize, words: &[u32]) {
        for (to, word) in self.bytes_mut(4 * at..4 * (at + words.len())).chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// A block of words.
    pub(crate) fn of_u32(what: &'static str, words: &[u32]) -> Result<Self, DeviceError> {
        let mut block = Block::new(what, 4 * words.len())?;
        block.write_u32(words);
        Ok(block)
    }

    /// Words from the start of the block on.
    pub(crate) fn read_u32(&self, words: usize) -> Vec<u32> {
        self.bytes(0..4 * words).as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    /// Floats from byte `4 * start` on.
    pub(crate) fn f32(&self, start: usize, len: usize) -> &[f32] {
        let bytes = self.bytes(4 * start..4 * (start + len));
        // SAFETY: any four bytes are an f32, and the block is aligned.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Places of one size in a block that grows: the states, or the pages, of all sequences in one layer. What nobody uses is poisoned.
pub(crate) struct Pool {
    block: Block,
    place: usize,
}

impl Pool {
    pub(crate) fn new(what: &'static str, place_bytes: usize) -> Result<Self, DeviceError> {
        Ok(Pool { block: Block::new(what, 0)?, place: place_bytes })
    }

    /// All places, for kernels.
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    fn range(&self, place: u32) -> Range<usize> {
        let start = place as usize * self.place;
        start..start + self.place
    }

    pub(crate) fn bytes(&self, place: u32) -> &[u8] {
        self.block.bytes(self.range(place))
    }

    fn fill(&mut self, place: u32, byte: u8) {
        let range = self.range(place);
        self.block.bytes_mut(range).fill(byte);
    }
}

impl device::Pool for Pool {
    fn place_bytes(&self) -> usize {
        self.place
    }

    /// Small models, and growing copies.
    fn growth(there: usize, least: usize) -> usize {
        least.max(2 * there)
    }

    fn grow(&mut self, what: &'static str, places: usize) -> Result<(), DeviceError> {
        self.block.grow(what, places * self.place)
    }

    fn clear(&mut self, place: u32) -> Result<(), DeviceError> {
        self.fill(place, 0);
        Ok(())
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        let (from, to) = (self.range(from), self.range(to));
        let all = 0..self.block.len();
        self.block.bytes_mut(all).copy_within(from, to.start);
        Ok(())
    }

    fn write(&mut self, place: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = self.range(place);
        self.block.bytes_mut(range).copy_from_slice(bytes);
        Ok(())
    }

    fn release(&mut self, place: u32) {
        self.fill(place, POISON);
    }
}
