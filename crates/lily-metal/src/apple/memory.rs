//! Shared buffers.

use std::sync::{Arc, Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{MTLBuffer, MTLResource};

use crate::gpu::Block;

/// Memory that the GPU and this process see. A clone is the same memory.
#[derive(Clone)]
pub struct AppleBuffer(Arc<Inner>);

struct Inner {
    buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// Held by whoever touches the bytes from this side.
    host: Mutex<()>,
}

// SAFETY: Metal's resources may be used on any thread; the bytes are only touched with the lock held.
unsafe impl Send for Inner {}
// SAFETY: as for Send.
unsafe impl Sync for Inner {}

impl AppleBuffer {
    pub(super) fn new(
        buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
        label: &str,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Self {
        buffer.setLabel(Some(&NSString::from_str(label)));
        // SAFETY: shared memory of that length, zeroed by Metal; nobody else has the buffer yet, neither here nor on the GPU.
        fill(unsafe { std::slice::from_raw_parts_mut(buffer.contents().as_ptr().cast(), buffer.length()) });
        AppleBuffer(Arc::new(Inner { buffer, host: Mutex::new(()) }))
    }

    pub(super) fn metal(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.0.buffer
    }

    /// The address of bytes that are inside.
    fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at + bytes <= self.len(), "{at} + {bytes} of {} bytes", self.len());
        // SAFETY: inside of the buffer (asserted), which lives as long as `self`.
        unsafe { self.0.buffer.contents().as_ptr().cast::<u8>().add(at) }
    }
}

impl Block for AppleBuffer {
    fn len(&self) -> usize {
        self.0.buffer.length()
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        let _host = self.0.host.lock().unwrap_or_else(PoisonError::into_inner);
        let from = self.at(at, into.len());
        // SAFETY: inside of the buffer (`at`); no other thread of this process writes (the lock), and no submitted commands do (`Block`).
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let _host = self.0.host.lock().unwrap_or_else(PoisonError::into_inner);
        let to = self.at(at, bytes.len());
        // SAFETY: as in `read`, and no submitted commands read either.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}
