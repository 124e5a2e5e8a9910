//! Weights on their way into buffers that the GPU reads: several threads copy, and pages of the file that were read are given back,
//! so that no two copies of the model are ever in memory. Weights of a packed checkpoint stay where they are mapped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lily_model::device::{Layout, Piece, Progress, TensorSource, Watch};
use lily_model::plan::Target;
use lily_model::{DeviceError, Mapped, Packing};

use crate::gpu::{Fault, Gpu};
use crate::memory::allocate;

/// The most bytes of a buffer of weights: small Macs allow less than half of their memory in one, and what the system cannot find in one
/// piece it may find in several.
pub(crate) const BLOCK: usize = 1 << 30;

/// Bytes that a thread copies at a time.
const PIECE: usize = 8 << 20;

/// The most threads: memory is written no faster by more.
const READERS: usize = 8;

/// Bytes that a thread has read from disk at a time.
const TOUCHED: usize = 32 << 20;

/// Where weights stand, in which buffers.
pub(crate) struct Loaded<G: Gpu> {
    pub(crate) layout: Layout,
    pub(crate) blocks: Vec<G::Buffer>,
    /// They are those of the file, and not copies.
    pub(crate) are_mapped: bool,
}

/// The weights of a target: where they are mapped if they stand in pages, else copied.
pub(crate) fn weights<G: Gpu>(
    gpu: &G,
    target: Target<'_>,
    source: &dyn TensorSource,
    packing: &Packing,
    watch: Option<&Watch>,
) -> Result<Loaded<G>, DeviceError> {
    let failed = |error: lily_model::plan::PlanError| DeviceError::Failed(error.to_string());
    let most = BLOCK.min(gpu.facts().longest_buffer);
    if let Some((layout, pages)) = Layout::mapped(target, source, packing, most).map_err(failed)? {
        let page = gpu.facts().page;
        if pages.iter().all(|block| block.as_slice().as_ptr().addr().is_multiple_of(page)) {
            let blocks = map(gpu, &layout, &pages, watch)?;
            return Ok(Loaded { layout, blocks, are_mapped: true });
        }
    }
    let layout = Layout::new(target, source, packing, most).map_err(failed)?;
    let blocks = load(gpu, &layout, source, watch)?;
    Ok(Loaded { layout, blocks, are_mapped: false })
}

/// What is needed in all must be there.
fn check_room<G: Gpu>(gpu: &G, layout: &Layout) -> Result<(), DeviceError> {
    let left_bytes = gpu.facts().working_set.saturating_sub(gpu.allocated());
    let need_bytes = layout.bytes();
    if need_bytes > left_bytes {
        return Err(DeviceError::OutOfMemory { what: "the weights", need_bytes, left_bytes });
    }
    Ok(())
}

/// Buffers over the pages of a file, which are read from disk now: no answer waits for it in the middle.
fn map<G: Gpu>(
    gpu: &G,
    layout: &Layout,
    pages: &[Mapped],
    watch: Option<&Watch>,
) -> Result<Vec<G::Buffer>, DeviceError> {
    check_room(gpu, layout)?;
    let cut = |block: &Mapped| {
        let (block, range) = (block.clone(), block.range());
        let end = range.end;
        range.step_by(TOUCHED).filter_map(move |start| block.within_file(start..end.min(start + TOUCHED)))
    };
    let pieces: Vec<Mapped> = pages.iter().flat_map(cut).collect();
    let (count, read) = (pieces.len(), AtomicUsize::new(0));
    in_threads(count, pieces, |piece: Mapped| {
        piece.touch();
        let bytes = read.fetch_add(piece.range().len(), Ordering::Relaxed) + piece.range().len();
        if let Some(watch) = watch {
            watch(Progress::Loading { bytes, of: layout.bytes() });
        }
    });
    let buffer = |block: &Mapped| {
        gpu.map("the weights", block).map_err(|error| match error.kind {
            Fault::Memory => DeviceError::OutOfMemory {
                what: "the weights",
                need_bytes: block.range().len(),
                left_bytes: gpu.facts().working_set.saturating_sub(gpu.allocated()),
            },
            _ => DeviceError::Failed(format!("the weights, where they are mapped: {error}")),
        })
    };
    pages.iter().map(buffer).collect()
}

/// Allocates and fills the blocks of a layout.
pub(crate) fn load<G: Gpu>(
    gpu: &G,
    layout: &Layout,
    source: &dyn TensorSource,
    watch: Option<&Watch>,
) -> Result<Vec<G::Buffer>, DeviceError> {
    check_room(gpu, layout)?;
    let need_bytes = layout.bytes();
    let pieces = layout.pieces(PIECE);
    let loaded = AtomicUsize::new(0);
    let blocks = layout.blocks().iter().enumerate();
    blocks
        .map(|(block, bytes)| {
            let of_block = |piece: &&Piece| piece.block == block;
            let pieces: Vec<Piece> = pieces.iter().filter(of_block).copied().collect();
            allocate(gpu, "the weights", *bytes, &mut |memory| {
                fill(memory, &pieces, source, |bytes| {
                    let bytes = loaded.fetch_add(bytes, Ordering::Relaxed) + bytes;
                    if let Some(watch) = watch {
                        watch(Progress::Loading { bytes, of: need_bytes });
                    }
                });
            })
        })
        .collect()
}

/// Copies pieces, which stand in order and apart, each to its place.
fn fill(memory: &mut [u8], pieces: &[Piece], source: &dyn TensorSource, done: impl Fn(usize) + Sync) {
    let (mut rest, mut at, mut places) = (memory, 0, Vec::with_capacity(pieces.len()));
    for piece in pieces {
        let (place, behind) = rest.split_at_mut(piece.to - at + piece.bytes);
        places.push((*piece, &mut place[piece.to - at..]));
        (rest, at) = (behind, piece.to + piece.bytes);
    }
    in_threads(places.len(), places, |(piece, place): (Piece, &mut [u8])| {
        source.read(piece.tensor, piece.from, place);
        source.release(piece.tensor, piece.from..piece.from + piece.bytes);
        done(piece.bytes);
    });
}

/// Does something with each of so many, in several threads.
fn in_threads<T: Send>(
    count: usize,
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    each: impl Fn(T) + Sync,
) {
    let items = Mutex::new(items.into_iter());
    let work = || {
        loop {
            let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = next else { return };
            each(item);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 1..processors.min(READERS).min(count) {
            scope.spawn(work);
        }
        work();
    });
}
