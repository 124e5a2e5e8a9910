//! Weights on their way into the device's memory: several threads read, each through two pinned buffers of its own, so that
//! copies wait for no reader and no reader for copies.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;
use lily_model::DeviceError;
use lily_model::device::{Layout, Piece, TensorSource};

use crate::device::{Progress, Watch};
use crate::driver::{Context, CudaError, Event, cuda};
use crate::memory::{Block, Pinned};

/// Bytes of a pinned buffer: long copies, and a few dozen megabytes for all threads.
const STAGE: usize = 8 << 20;

/// The most threads. A core reads some 10 GB/s out of the page cache, and a link takes 25 to 60.
const READERS: usize = 8;

/// Fills a block with the tensors of a layout that has one.
pub(crate) fn upload(
    context: &Arc<Context>,
    layout: &Layout,
    source: &dyn TensorSource,
    block: &Block,
    watch: Option<&Watch>,
) -> Result<(), DeviceError> {
    let pieces = layout.pieces(STAGE);
    let (next, copied) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let work = || {
        let take = || pieces.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        let done = |bytes: usize| {
            let bytes = copied.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if let Some(watch) = watch {
                watch(Progress::Uploading { bytes, of: layout.bytes() });
            }
        };
        if let Err(error) = read(context, source, block, take, done) {
            // Others find nothing left to do.
            next.store(pieces.len(), Ordering::Relaxed);
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 1..processors.min(READERS).min(pieces.len()) {
            scope.spawn(work);
        }
        work();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// What one thread does.
fn read(
    context: &Arc<Context>,
    source: &dyn TensorSource,
    block: &Block,
    take: impl Fn() -> Option<Piece>,
    done: impl Fn(usize),
) -> Result<(), DeviceError> {
    context.enter()?;
    let stage =
        || Ok::<_, DeviceError>((Pinned::new(context, "room to load weights", STAGE)?, Event::new()?));
    let mut stages = [stage()?, stage()?];
    let stream = Stream::new()?;
    while let Some(piece) = take() {
        let (pinned, event) = &mut stages[0];
        event.wait()?;
        source.read(piece.tensor, piece.from, &mut pinned.bytes_mut()[..piece.bytes]);
        assert!(piece.to + piece.bytes <= block.len());
        let at = block.start() + piece.to as u64;
        let from = pinned.bytes().as_ptr().cast();
        // SAFETY: inside of the block (asserted) and of the buffer, which stays as it is until the event has happened.
        unsafe { cuda!(cuMemcpyHtoDAsync_v2(at, from, piece.bytes, stream.0)) }?;
        event.record(stream.0)?;
        stages.swap(0, 1);
        done(piece.bytes);
    }
    Ok(stream.wait()?)
}

/// A thread's own stream. Declared behind the buffers, so that it is through with them before they go.
struct Stream(sys::CUstream);

impl Stream {
    fn new() -> Result<Self, CudaError> {
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes the handle; the context is current.
        unsafe { cuda!(cuStreamCreate(&raw mut stream, flags)) }?;
        Ok(Stream(stream))
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the handle lives.
        unsafe { cuda!(cuStreamSynchronize(self.0)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.wait();
        // SAFETY: made by `new`.
        let _ = unsafe { cuda!(cuStreamDestroy_v2(self.0)) };
    }
}
