//! One launch alone, over memory of its own: for tests of kernels.

use std::path::PathBuf;

use lily_kernels::{Activation, Kernel};
use lily_model::DeviceError;
use lily_model::device::{Memory, Place};
use lily_model::plan::Buffer;

use crate::codes::{Codes, Variant};
use crate::gpu::Gpu;
use crate::memory::{Block, bytes_of};
use crate::modules::Modules;
use crate::native::{self, KernelSet};
use crate::prepared::{One, Work, dispatches};

/// Runs kernels one by one.
pub struct Single {
    gpu: Gpu,
    /// Multiprocessors that launches are shaped for.
    cores: usize,
    modules: Modules,
}

/// The table of sequences, the one buffer that is no operand.
struct Slots(Block);

impl Memory for Slots {
    type Address = u64;

    fn buffer(&self, buffer: Buffer) -> Option<(u64, usize)> {
        (buffer == Buffer::Slots).then(|| (self.0.start(), self.0.len()))
    }

    fn offset(start: u64, bytes: usize) -> u64 {
        start + bytes as u64
    }
}

impl Single {
    /// On a GPU, keeping machine code in a folder. Launches are shaped for so many multiprocessors: fewer than there are give small
    /// cases the shapes of large ones.
    pub fn new(gpu: &Gpu, cores: usize, cubins: Option<PathBuf>) -> Self {
        let codes = Codes::new(gpu.origins.clone(), cubins, gpu.found.architecture(), None);
        Single { gpu: gpu.clone(), cores, modules: Modules::new(&gpu.context, codes) }
    }

    /// Whether this set has a native text for a kernel of these sizes.
    pub fn is_native(&self, kernel: &Kernel, activation: Activation, set: KernelSet) -> bool {
        native::of(kernel, activation, set, self.cores).is_some()
    }

    /// What operands, in the order of the kernel's, hold after a launch over these.
    ///
    /// # Errors
    /// Where the kernel does not compile or run.
    pub fn run(
        &mut self,
        kernel: &Kernel,
        activation: Activation,
        set: KernelSet,
        operands: &[&[u8]],
        slots: &[u32],
    ) -> Result<Vec<Vec<u8>>, DeviceError> {
        let context = self.gpu.context.clone();
        context.enter()?;
        let native = dispatches(kernel, activation, set, self.cores)?;
        self.modules.load(native.launches.iter().map(|d| Variant::of(d, activation)))?;
        let block = |bytes: &[u8]| {
            let block = Block::new(&context, "an operand", bytes.len())?;
            block.write(0, bytes)?;
            Ok::<_, DeviceError>(block)
        };
        let blocks: Vec<Block> = operands.iter().map(|bytes| block(bytes)).collect::<Result<_, _>>()?;
        let table = Slots(block(bytes_of(slots))?);
        let scratch = Block::new(&context, "scratch", native.scratch_bytes)?;
        scratch.fill(0..scratch.len(), 0xff)?;
        let places: Vec<Place<u64>> =
            blocks.iter().map(|b| Place { start: b.start(), bytes: b.len() }).collect();
        for dispatch in &native.launches {
            let one = One::new(kernel, dispatch, &table, &places, scratch.start())?;
            let work = Work::kernel(kernel.name(), dispatch, activation, &[one], &self.modules)?;
            work.enqueue(&context)?;
        }
        context.wait()?;
        let read = |(block, bytes): (&Block, &&[u8])| {
            let mut after = vec![0; bytes.len()];
            block.read(0, &mut after)?;
            Ok(after)
        };
        blocks.iter().zip(operands).map(read).collect()
    }
}
