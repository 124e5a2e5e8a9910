//! Places of the states and pages of all sequences of a layer, in a buffer that grows.

use std::ops::Range;

use lily_model::{DeviceError, device};

use crate::gpu::{Block, Commands, Gpu};
use crate::memory::allocate;
use crate::queue::{Owner, Queue};

/// A pool grows by this share of itself, as those of other GPUs: a long context is copied a few times and not at each page.
const AHEAD: usize = 8;

/// The least places that a pool gets.
const FEWEST: usize = 4;

/// Places of one size. What is asked of it is written down among the commands of the queue, in order.
pub(crate) struct Pool<G: Gpu> {
    gpu: G,
    queue: Queue<G>,
    buffer: G::Buffer,
    place: usize,
}

impl<G: Gpu> Pool<G> {
    pub(crate) fn new(
        gpu: &G,
        queue: &Queue<G>,
        what: &'static str,
        place_bytes: usize,
    ) -> Result<Self, DeviceError> {
        let buffer = allocate(gpu, what, 1, &mut |_| ())?;
        Ok(Pool { gpu: gpu.clone(), queue: queue.clone(), buffer, place: place_bytes })
    }

    /// All places, for kernels.
    pub(crate) fn buffer(&self) -> &G::Buffer {
        &self.buffer
    }

    pub(crate) fn range(&self, place: u32) -> Range<usize> {
        let start = place as usize * self.place;
        start..start + self.place
    }
}

impl<G: Gpu> device::Pool for Pool<G> {
    fn place_bytes(&self) -> usize {
        self.place
    }

    fn growth(there: usize, least: usize) -> usize {
        least.max(there + there / AHEAD).max(FEWEST)
    }

    fn grow(&mut self, what: &'static str, places: usize) -> Result<(), DeviceError> {
        let bytes = places * self.place;
        if self.buffer.len() < bytes {
            let longer = allocate(&self.gpu, what, bytes, &mut |_| ())?;
            if self.buffer.len() >= self.place {
                let all = 0..self.buffer.len();
                // By itself, so that it fails for no other reason.
                self.queue.cut()?;
                self.queue.move_bytes("growing", |c| c.copy(&self.buffer, all, &longer, 0))?;
                self.queue.own_open(&[], &[Owner::Pool]);
                // Waited for, so that no two pools are there twice.
                self.queue.submit()?;
                self.queue.wait()?;
                let moved = self.queue.check(&[Owner::Pool]);
                self.queue.forget(Owner::Pool);
                moved?;
            }
            self.buffer = longer;
        }
        Ok(())
    }

    fn clear(&mut self, place: u32) -> Result<(), DeviceError> {
        self.queue.move_bytes("a new sequence", |c| c.fill(&self.buffer, self.range(place), 0))
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        let (from, to) = (self.range(from), self.range(to).start);
        self.queue.move_bytes("a copy of a state", |c| c.copy(&self.buffer, from, &self.buffer, to))
    }

    fn write(&mut self, place: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.queue.submit()?;
        self.queue.wait()?;
        let range = self.range(place);
        self.buffer.write(range.start, &bytes[..range.len()]);
        Ok(())
    }
}
