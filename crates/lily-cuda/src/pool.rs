//! Places of the states and pages of all sequences of a layer, in the device's memory.

use std::ops::Range;
use std::sync::Arc;

use lily_model::DeviceError;
use lily_model::device;

use crate::driver::Context;
use crate::memory::Block;

/// A pool grows by this share of itself, so that a long context is copied a few times and not at each page: at 128K tokens an
/// eighth of keys and values is a third of a gigabyte.
const AHEAD: usize = 8;

/// The least places that a pool gets.
const FEWEST: usize = 4;

/// Places of one size in a block that grows.
pub(crate) struct Pool {
    context: Arc<Context>,
    block: Block,
    place: usize,
}

impl Pool {
    pub(crate) fn new(
        context: &Arc<Context>,
        what: &'static str,
        place_bytes: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Pool { context: context.clone(), block: Block::new(context, what, 0)?, place: place_bytes })
    }

    /// All places, for kernels.
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    pub(crate) fn range(&self, place: u32) -> Range<usize> {
        let start = place as usize * self.place;
        start..start + self.place
    }
}

impl device::Pool for Pool {
    fn place_bytes(&self) -> usize {
        self.place
    }

    fn growth(there: usize, least: usize) -> usize {
        least.max(there + there / AHEAD).max(FEWEST)
    }

    fn grow(&mut self, what: &'static str, places: usize) -> Result<(), DeviceError> {
        let bytes = places * self.place;
        // A block has one byte at least: one that is not longer is not worth keeping.
        if self.block.len() < bytes {
            let longer = Block::new(&self.context, what, bytes)?;
            if self.block.len() >= self.place {
                longer.copy(0, &self.block, 0..self.block.len())?;
            }
            self.context.wait()?;
            self.block = longer;
        }
        Ok(())
    }

    fn clear(&mut self, place: u32) -> Result<(), DeviceError> {
        Ok(self.block.fill(self.range(place), 0)?)
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<(), DeviceError> {
        Ok(self.block.copy(self.range(to).start, &self.block, self.range(from))?)
    }

    fn write(&mut self, place: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = self.range(place);
        Ok(self.block.write(range.start, &bytes[..range.len()])?)
    }
}
