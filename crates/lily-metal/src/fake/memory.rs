//! Memory of paper: the host's own, which knows which submitted commands use it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lily_model::Mapped;

use super::FakeGpu;
use crate::gpu::{Block, GpuError};

/// A buffer.
#[derive(Clone)]
pub struct FakeBuffer(Arc<Inner>);

struct Inner {
    gpu: FakeGpu,
    number: u64,
    memory: Mutex<Memory>,
    /// Numbers of submissions that use it.
    used: Mutex<BTreeSet<usize>>,
}

/// Of its own, or of somebody who only lets it be read.
enum Memory {
    Own(Aligned),
    File(Mapped),
}

impl Memory {
    fn as_slice(&self) -> &[u8] {
        match self {
            Memory::Own(own) => &own.bytes[own.start..own.start + own.len],
            Memory::File(pages) => pages.as_slice(),
        }
    }
}

/// Zeros at a multiple of 256, which a GPU's buffers are at: some more than needed, from the first such address on.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0u8; len + 256];
        let start = bytes.as_ptr().align_offset(256).min(256);
        Aligned { bytes, start, len }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for FakeBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "buffer {} of {} bytes", self.0.number, self.len())
    }
}

impl PartialEq for FakeBuffer {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl FakeBuffer {
    pub(super) fn new(
        gpu: &FakeGpu,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Self, GpuError> {
        let mut memory = Aligned::new(bytes);
        fill(memory.all());
        let number = gpu.log().next_buffer(bytes);
        Ok(FakeBuffer::with_memory(gpu, number, Memory::Own(memory)))
    }

    pub(super) fn over(gpu: &FakeGpu, pages: &Mapped) -> Self {
        let (start, len) = (pages.as_slice().as_ptr().addr(), pages.as_slice().len());
        let page = gpu.facts.page;
        if !start.is_multiple_of(page) || !len.is_multiple_of(page) {
            gpu.wrong(format!("{len} bytes of a file at {start:#x} are no whole pages of {page}"));
        }
        let number = gpu.log().next_buffer(len);
        gpu.log().mapped += len;
        FakeBuffer::with_memory(gpu, number, Memory::File(pages.clone()))
    }

    fn with_memory(gpu: &FakeGpu, number: u64, memory: Memory) -> Self {
        let inner = Inner { gpu: gpu.clone(), number, memory: Mutex::new(memory), used: Mutex::default() };
        FakeBuffer(Arc::new(inner))
    }

    /// Which buffer it is.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something with its bytes, for whoever runs commands.
    ///
    /// # Panics
    /// Where they are those of a file, which nobody may write.
    pub fn with_bytes<R>(&self, run: impl FnOnce(&mut [u8]) -> R) -> R {
        match &mut *self.memory() {
            Memory::Own(own) => run(own.all()),
            Memory::File(_) => panic!("buffer {} is of a file, and is to be written", self.0.number),
        }
    }

    /// Where byte `at` is, for whoever runs commands. What is of a file is only to be read there.
    pub fn address(&self, at: usize) -> *mut u8 {
        match &mut *self.memory() {
            Memory::Own(own) => own.all()[at..].as_mut_ptr(),
            Memory::File(pages) => pages.as_slice()[at..].as_ptr().cast_mut(),
        }
    }

    pub(super) fn used_by(&self, submission: usize) {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner).insert(submission);
    }

    fn touched(&self, what: &str, range: &Range<usize>) {
        assert!(range.end <= self.len(), "{what} {range:?} of {self:?}");
        let used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let log = self.0.gpu.log();
        let flying = used.iter().find(|number| log.in_flight.contains(number)).copied();
        drop(log);
        if let Some(number) = flying {
            self.0.gpu.wrong(format!("the host {what}s {self:?} while submission {number} uses it"));
        }
    }
}

impl Block for FakeBuffer {
    fn len(&self) -> usize {
        self.memory().as_slice().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let range = at..at + into.len();
        self.touched("read", &range);
        into.copy_from_slice(&self.memory().as_slice()[range]);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let range = at..at + bytes.len();
        self.touched("write", &range);
        self.with_bytes(|own| own[range].copy_from_slice(bytes));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let bytes = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).as_slice().len();
        self.gpu.log().freed(bytes);
    }
}
