//! Memory of the GPU, within what the system lets it have.

use lily_model::DeviceError;

use crate::gpu::{Block, Fault, Gpu};

/// Allocates, or says what is missing. `fill` writes what the buffer holds at first; what it leaves is zero.
pub(crate) fn allocate<G: Gpu>(
    gpu: &G,
    what: &'static str,
    bytes: usize,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Result<G::Buffer, DeviceError> {
    let facts = gpu.facts();
    let left_bytes = facts.working_set.saturating_sub(gpu.allocated());
    let short = || DeviceError::OutOfMemory { what, need_bytes: bytes, left_bytes };
    if bytes > left_bytes {
        return Err(short());
    }
    if bytes > facts.longest_buffer {
        let most = facts.longest_buffer;
        return Err(DeviceError::Failed(format!(
            "{what} take {bytes} bytes in one buffer, and {} allows {most}: lower --context",
            facts.name
        )));
    }
    gpu.buffer(what, bytes.max(1), fill).map_err(|error| match error.kind {
        Fault::Memory => short(),
        _ => DeviceError::Failed(format!("{what}: {error}")),
    })
}

/// A buffer that grows. What it holds then is lost.
pub(crate) struct Scratch<G: Gpu> {
    gpu: G,
    what: &'static str,
    buffer: G::Buffer,
}

impl<G: Gpu> Scratch<G> {
    pub(crate) fn new(gpu: &G, what: &'static str) -> Result<Self, DeviceError> {
        Ok(Scratch { gpu: gpu.clone(), what, buffer: allocate(gpu, what, 1, &mut |_| ())? })
    }

    /// Makes it at least so long. Commands that were submitted keep the old one for themselves.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<bool, DeviceError> {
        let grows = self.buffer.len() < bytes;
        if grows {
            self.buffer = allocate(&self.gpu, self.what, bytes, &mut |_| ())?;
        }
        Ok(grows)
    }

    pub(crate) fn buffer(&self) -> &G::Buffer {
        &self.buffer
    }
}
