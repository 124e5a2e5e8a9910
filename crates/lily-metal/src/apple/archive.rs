//! Machine code of pipelines, kept in a file.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineState,
    MTLDevice, MTLPipelineOption,
};

/// What was made before, by this program on this system.
pub(super) struct Archive {
    archive: Mutex<Retained<ProtocolObject<dyn MTLBinaryArchive>>>,
    file: PathBuf,
    /// Something was added since it was kept.
    has_more: AtomicBool,
}

// SAFETY: the archive is only used with the lock held.
unsafe impl Send for Archive {}
// SAFETY: as for Send.
unsafe impl Sync for Archive {}

fn url(file: &std::path::Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&file.to_string_lossy()))
}

impl Archive {
    /// That of a file, or an empty one where the file is not there or not one that this system takes. `None` where there are no
    /// archives at all; pipelines are then made each time.
    pub(super) fn open(device: &ProtocolObject<dyn MTLDevice>, file: PathBuf) -> Option<Self> {
        let descriptor = MTLBinaryArchiveDescriptor::new();
        let mut made = None;
        if file.is_file() {
            descriptor.setUrl(Some(&url(&file)));
            made = device.newBinaryArchiveWithDescriptor_error(&descriptor).ok();
            descriptor.setUrl(None);
        }
        let archive = made.or_else(|| device.newBinaryArchiveWithDescriptor_error(&descriptor).ok())?;
        Some(Archive { archive: Mutex::new(archive), file, has_more: AtomicBool::new(false) })
    }

    /// Writes it, where something was added; by another name first, so that nobody finds half of it. That it cannot be written costs
    /// the next start some time, and nothing else.
    pub(super) fn keep(&self) {
        if !self.has_more.swap(false, Ordering::Relaxed) {
            return;
        }
        let archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
        let part = self.file.with_extension(format!("part{}", std::process::id()));
        if let Some(folder) = self.file.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        if archive.serializeToURL_error(&url(&part)).is_ok() {
            let _ = std::fs::rename(&part, &self.file);
        }
    }
}

/// A pipeline from the archive, or a new one, which is added to it.
pub(super) fn make(
    device: &ProtocolObject<dyn MTLDevice>,
    archive: Option<&Archive>,
    descriptor: &MTLComputePipelineDescriptor,
) -> Result<Retained<ProtocolObject<dyn MTLComputePipelineState>>, Retained<NSError>> {
    let make = |options| {
        device.newComputePipelineStateWithDescriptor_options_reflection_error(descriptor, options, None)
    };
    let Some(Archive { archive, has_more, .. }) = archive else { return make(MTLPipelineOption::None) };
    {
        let archive = archive.lock().unwrap_or_else(PoisonError::into_inner);
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&**archive])));
        if let Ok(found) = make(MTLPipelineOption::FailOnBinaryArchiveMiss) {
            return Ok(found);
        }
    }
    // Without the lock: this is what takes time, and others can do it meanwhile.
    let made = make(MTLPipelineOption::None)?;
    let archive = archive.lock().unwrap_or_else(PoisonError::into_inner);
    if archive.addComputePipelineFunctionsWithDescriptor_error(descriptor).is_ok() {
        has_more.store(true, Ordering::Relaxed);
    }
    Ok(made)
}
