//! Memory of paper: the host's own, which knows which submitted commands use it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::FakeGpu;
use crate::gpu::{Block, GpuError};

/// A buffer.
#[derive(Clone)]
pub struct FakeBuffer(Arc<Inner>);

struct Inner {
    gpu: FakeGpu,
    number: u64,
    memory: Mutex<Aligned>,
    /// Numbers of submissions that use it.
    used: Mutex<BTreeSet<usize>>,
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
        let inner = Inner { gpu: gpu.clone(), number, memory: Mutex::new(memory), used: Mutex::default() };
        Ok(FakeBuffer(Arc::new(inner)))
    }

    /// Which buffer it is.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    fn memory(&self) -> MutexGuard<'_, Aligned> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something with its bytes, for whoever runs commands.
    pub fn with_bytes<R>(&self, run: impl FnOnce(&mut [u8]) -> R) -> R {
        run(self.memory().all())
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
        self.memory().len
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let range = at..at + into.len();
        self.touched("read", &range);
        into.copy_from_slice(&self.memory().all()[range]);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let range = at..at + bytes.len();
        self.touched("write", &range);
        self.memory().all()[range].copy_from_slice(bytes);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let bytes = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).len;
        self.gpu.log().freed(bytes);
    }
}
