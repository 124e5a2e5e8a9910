//! Memory of the device, and memory of the host that the device copies from and to.

use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use lily_model::DeviceError;

use crate::driver::{Context, CudaError, cuda};

/// A block of the device's memory. What it holds at first is undefined.
pub(crate) struct Block {
    context: Arc<Context>,
    start: u64,
    bytes: usize,
}

/// Says what memory was for, where there was not enough of it.
pub(crate) fn explain(context: &Context, what: &'static str, bytes: usize, error: CudaError) -> DeviceError {
    if !error.is_out_of_memory {
        return error.into();
    }
    let left_bytes = context.memory().map_or(0, |(free, _)| free);
    DeviceError::OutOfMemory { what, need_bytes: bytes, left_bytes }
}

impl Block {
    /// At least one byte, so that every block has an address. The context is current.
    pub(crate) fn new(context: &Arc<Context>, what: &'static str, bytes: usize) -> Result<Self, DeviceError> {
        let (mut start, bytes) = (0, bytes.max(1));
        // SAFETY: writes the address of memory that the driver allocates, aligned to 256 bytes at least.
        let made = unsafe { cuda!(cuMemAlloc_v2(&raw mut start, bytes)) };
        made.map_err(|error| explain(context, what, bytes, error))?;
        Ok(Block { context: context.clone(), start, bytes })
    }

    /// Replaces the block by a larger one where it is shorter; what it held is gone then.
    pub(crate) fn reserve(&mut self, what: &'static str, bytes: usize) -> Result<(), DeviceError> {
        if self.bytes < bytes {
            // What runs may still use the old one, and both together may be too much.
            self.context.wait()?;
            let context = self.context.clone();
            *self = Block::new(&context, what, 1)?;
            *self = Block::new(&context, what, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
    }

    /// Enqueues filling some bytes with one value.
    pub(crate) fn fill(&self, range: Range<usize>, byte: u8) -> Result<(), CudaError> {
        self.check(&range);
        let (at, stream) = (self.start + range.start as u64, self.context.stream());
        // SAFETY: inside of the block (asserted), in the order of the stream.
        unsafe { cuda!(cuMemsetD8Async(at, byte, range.len(), stream)) }
    }

    /// Enqueues a copy of some bytes of another block, or of this one, without overlap.
    pub(crate) fn copy(&self, to: usize, from: &Block, range: Range<usize>) -> Result<(), CudaError> {
        from.check(&range);
        self.check(&(to..to + range.len()));
        let (to, at) = (self.start + to as u64, from.start + range.start as u64);
        // SAFETY: both inside of their blocks (asserted), in the order of the stream.
        unsafe { cuda!(cuMemcpyDtoDAsync_v2(to, at, range.len(), self.context.stream())) }
    }

    /// Copies from the host; comes back when the source may change.
    pub(crate) fn write(&self, to: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.check(&(to..to + bytes.len()));
        let (at, stream) = (self.start + to as u64, self.context.stream());
        // SAFETY: inside of the block (asserted); the source lives until the copy is done, which is waited for.
        unsafe { cuda!(cuMemcpyHtoDAsync_v2(at, bytes.as_ptr().cast(), bytes.len(), stream)) }?;
        self.context.wait()
    }

    /// Copies to the host, after everything that was enqueued.
    pub(crate) fn read(&self, from: usize, into: &mut [u8]) -> Result<(), CudaError> {
        self.check(&(from..from + into.len()));
        let (at, stream) = (self.start + from as u64, self.context.stream());
        // SAFETY: inside of the block (asserted); the target lives until the copy is done, which is waited for.
        unsafe { cuda!(cuMemcpyDtoHAsync_v2(into.as_mut_ptr().cast(), at, into.len(), stream)) }?;
        self.context.wait()
    }

    /// Enqueues a copy from pinned memory, which must stay as it is until the copy is done.
    pub(crate) fn write_from(&self, to: usize, pinned: &Pinned, bytes: usize) -> Result<(), CudaError> {
        self.check(&(to..to + bytes));
        assert!(bytes <= pinned.bytes);
        let (at, stream) = (self.start + to as u64, self.context.stream());
        // SAFETY: inside of both (asserted); pinned memory lives until the stream is through with it (`Pinned`).
        unsafe { cuda!(cuMemcpyHtoDAsync_v2(at, pinned.start.as_ptr().cast(), bytes, stream)) }
    }

    /// Enqueues a copy into pinned memory, whose bytes are there after a wait.
    pub(crate) fn read_into(
        &self,
        range: Range<usize>,
        pinned: &mut Pinned,
        at: usize,
    ) -> Result<(), CudaError> {
        self.check(&range);
        assert!(at + range.len() <= pinned.bytes);
        let (from, stream) = (self.start + range.start as u64, self.context.stream());
        // SAFETY: inside of both (asserted); pinned memory lives until the stream is through with it (`Pinned`).
        unsafe {
            let to = pinned.start.as_ptr().add(at).cast();
            cuda!(cuMemcpyDtoHAsync_v2(to, from, range.len(), stream))
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`. The driver waits for what still uses it.
        unsafe {
            if self.context.enter().is_ok() {
                let _ = cuda!(cuMemFree_v2(self.start));
            }
        }
    }
}

/// Memory of the host that the device copies from and to while the host does something else.
pub(crate) struct Pinned {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: owned memory; the device touches it only in copies that its owner enqueues and waits for.
unsafe impl Send for Pinned {}
// SAFETY: as for Send; shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeros. The context is current.
    pub(crate) fn new(context: &Arc<Context>, what: &'static str, bytes: usize) -> Result<Self, DeviceError> {
        let (mut start, bytes) = (null_mut(), bytes.max(1));
        // SAFETY: writes the address of memory that the driver allocates.
        let made = unsafe { cuda!(cuMemHostAlloc(&raw mut start, bytes, 0)) };
        made.map_err(|error| explain(context, what, bytes, error))?;
        let failed = || DeviceError::OutOfMemory { what, need_bytes: bytes, left_bytes: 0 };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(failed)?;
        // SAFETY: as long as was allocated.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { context: context.clone(), start, bytes })
    }

    /// Replaces it by a longer one where it is shorter; what it held is gone then.
    pub(crate) fn reserve(&mut self, what: &'static str, bytes: usize) -> Result<(), DeviceError> {
        if self.bytes < bytes {
            self.context.wait()?;
            *self = Pinned::new(&self.context.clone(), what, bytes)?;
        }
        Ok(())
    }

    /// No copy from or to it is on its way.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: initialised when it was made, and no copy into it is on its way (the caller's promise by having waited).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// No copy from or to it is on its way.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Words from the start; no copy is on its way.
    pub(crate) fn words(&self, count: usize) -> Vec<u32> {
        self.bytes()[..4 * count].as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    /// Floats from number `start` on; no copy is on its way.
    pub(crate) fn floats(&self, start: usize, count: usize) -> &[f32] {
        let bytes = &self.bytes()[4 * start..4 * (start + count)];
        // SAFETY: any four bytes are a float, and pinned memory is aligned to pages.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; copies from or to it are waited for first.
        unsafe {
            if self.context.enter().is_ok() {
                let _ = self.context.wait();
                let _ = cuda!(cuMemFreeHost(self.start.as_ptr().cast()));
            }
        }
    }
}

/// The bytes of words.
pub(crate) fn bytes_of(words: &[u32]) -> &[u8] {
    // SAFETY: u32 has no padding, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}
