//! Weights on their way into buffers that the GPU reads: several threads copy, and pages of the file that were read are given back,
//! so that no two copies of the model are ever in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lily_model::DeviceError;
use lily_model::device::{Layout, Piece, Progress, TensorSource, Watch};

use crate::gpu::Gpu;
use crate::memory::allocate;

/// The most bytes of a buffer of weights: small Macs allow less than half of their memory in one, and what the system cannot find in one
/// piece it may find in several.
pub(crate) const BLOCK: usize = 1 << 30;

/// Bytes that a thread copies at a time.
const PIECE: usize = 8 << 20;

/// The most threads: memory is written no faster by more.
const READERS: usize = 8;

/// Allocates and fills the blocks of a layout.
pub(crate) fn load<G: Gpu>(
    gpu: &G,
    layout: &Layout,
    source: &dyn TensorSource,
    watch: Option<&Watch>,
) -> Result<Vec<G::Buffer>, DeviceError> {
    let left_bytes = gpu.facts().working_set.saturating_sub(gpu.allocated());
    let need_bytes = layout.bytes();
    if need_bytes > left_bytes {
        return Err(DeviceError::OutOfMemory { what: "the weights", need_bytes, left_bytes });
    }
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
    let count = places.len();
    let places = Mutex::new(places.into_iter());
    let work = || {
        loop {
            let next = places.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((piece, place)) = next else { return };
            source.read(piece.tensor, piece.from, place);
            source.release(piece.tensor, piece.from..piece.from + piece.bytes);
            done(piece.bytes);
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
