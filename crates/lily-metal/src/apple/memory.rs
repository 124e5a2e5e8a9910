//! Shared buffers.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor, MTLResource, MTLResourceOptions,
};

use lily_model::Mapped;

use super::exception::caught;
use crate::gpu::{Block, Fault, GpuError};

/// Memory that the GPU and this process see. A clone is the same memory.
#[derive(Clone)]
pub struct AppleBuffer(Arc<Inner>);

struct Inner {
    buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// Held by whoever touches the bytes from this side.
    host: Mutex<()>,
    /// The set that keeps it in memory for a queue that does not track it.
    resident: Option<Arc<Resident>>,
    /// What the buffer stands over, where that is not its own: it lives as long, and nobody writes it.
    pages: Option<Mapped>,
}

// SAFETY: Metal's resources may be used on any thread; the bytes are only touched with the lock held.
unsafe impl Send for Inner {}
// SAFETY: as for Send.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(resident) = &self.resident {
            resident.remove(&self.buffer);
        }
    }
}

/// Buffers that a queue finds in memory.
pub(super) struct Resident {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
    /// Held by whoever changes the set.
    changing: Mutex<()>,
}

// SAFETY: the set may be used on any thread, and is changed with the lock held.
unsafe impl Send for Resident {}
// SAFETY: as for Send.
unsafe impl Sync for Resident {}

impl Resident {
    pub(super) fn new(device: &ProtocolObject<dyn MTLDevice>) -> Result<Self, GpuError> {
        let set = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let set = set.map_err(|error| GpuError::new(Fault::Commands, super::words(&error)))?;
        Ok(Resident { set, changing: Mutex::new(()) })
    }

    pub(super) fn set(&self) -> &ProtocolObject<dyn MTLResidencySet> {
        &self.set
    }

    fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) -> Result<(), GpuError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        caught(|| {
            self.set.addAllocation(ProtocolObject::from_ref(buffer));
            self.set.commit();
            Ok(())
        })
    }

    fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be taken out stays in memory, and nobody is there to be told.
        let _ = caught(|| {
            self.set.removeAllocation(ProtocolObject::from_ref(buffer));
            self.set.commit();
            Ok(())
        });
    }
}

impl AppleBuffer {
    pub(super) fn new(
        buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
        label: &str,
        resident: Option<&Arc<Resident>>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Self, GpuError> {
        buffer.setLabel(Some(&NSString::from_str(label)));
        // SAFETY: shared memory of that length, zeroed by Metal; nobody else has the buffer yet, neither here nor on the GPU.
        fill(unsafe { std::slice::from_raw_parts_mut(buffer.contents().as_ptr().cast(), buffer.length()) });
        AppleBuffer::with(buffer, resident, None)
    }

    /// Over pages of a file, which are not copied.
    pub(super) fn over(
        device: &ProtocolObject<dyn MTLDevice>,
        label: &str,
        resident: Option<&Arc<Resident>>,
        pages: &Mapped,
    ) -> Result<Self, GpuError> {
        let bytes = pages.as_slice();
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: whole pages that stay mapped as long as the buffer lives (`Inner::pages`), which Metal does not free (no deallocator).
        // They are mapped to be read: kernels only read weights (`constant`, or `const device` in their texts), and `write` refuses.
        let made = unsafe {
            device.newBufferWithBytesNoCopy_length_options_deallocator(
                NonNull::from(bytes).cast(),
                bytes.len(),
                options,
                None,
            )
        };
        let refused =
            || GpuError::new(Fault::Memory, format!("no buffer over {} bytes of a file", bytes.len()));
        let buffer = made.ok_or_else(refused)?;
        buffer.setLabel(Some(&NSString::from_str(label)));
        AppleBuffer::with(buffer, resident, Some(pages.clone()))
    }

    fn with(
        buffer: Retained<ProtocolObject<dyn MTLBuffer>>,
        resident: Option<&Arc<Resident>>,
        pages: Option<Mapped>,
    ) -> Result<Self, GpuError> {
        if let Some(resident) = resident {
            resident.add(&buffer)?;
        }
        let resident = resident.cloned();
        Ok(AppleBuffer(Arc::new(Inner { buffer, host: Mutex::new(()), resident, pages })))
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
        assert!(self.0.pages.is_none(), "a buffer over a file is only read");
        let _host = self.0.host.lock().unwrap_or_else(PoisonError::into_inner);
        let to = self.at(at, bytes.len());
        // SAFETY: as in `read`, and no submitted commands read either.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}
