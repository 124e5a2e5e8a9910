//! What memory and tensor cores give at most, measured: the roof over every kernel's speed.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use cudarc::driver::sys;
use lily_model::DeviceError;

use crate::codes::Codes;
use crate::driver::cuda;
use crate::gpu::Gpu;
use crate::memory::Block;

const SOURCE: &str = include_str!("roof.cu");

/// Bytes whose reading says something of memory: more than caches hold (50 MB on a Hopper), and long enough to time.
const BYTES: usize = 2 << 30;

/// Times that each is tried; the best counts.
const PASSES: usize = 10;

/// Rounds of products of a warp, and the operations of a round: eight products of 16 x 8 x 16, a multiply-add counted as two.
const ROUNDS: u32 = 20_000;
const ROUND: f64 = 8.0 * 2.0 * 16.0 * 8.0 * 16.0;

/// Threads of a block of each kernel, and blocks on each multiprocessor.
const READERS: u32 = 512;
const MULTIPLIERS: u32 = 256;
const BLOCKS: u32 = 4;

/// The best that a GPU gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes read from memory in a second.
    pub bytes_per_second: f64,
    /// Operations of tensor cores in a second with operands of 16 bits and sums in float32, by the instruction that the kernels use
    /// (`mma.sync`; Hopper's own `wgmma` is faster).
    pub flops_per_second: f64,
}

/// Source and options of the kernels that measure, for NVRTC.
pub fn roof_unit(architecture: &str) -> (String, Vec<String>) {
    (SOURCE.to_owned(), vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()])
}

/// A loaded module.
struct Module(sys::CUmodule);

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once; what runs of it is waited for by then.
        let _ = unsafe { cuda!(cuModuleUnload(self.0)) };
    }
}

impl Module {
    fn function(&self, name: &std::ffi::CStr) -> Result<sys::CUfunction, DeviceError> {
        let mut function = null_mut();
        // SAFETY: writes the handle; the name ends with a zero.
        unsafe { cuda!(cuModuleGetFunction(&raw mut function, self.0, name.as_ptr())) }?;
        Ok(function)
    }
}

impl Gpu {
    /// Measures memory and tensor cores, in a second. Takes up to two gigabytes for that while, at most a quarter of what is free.
    ///
    /// # Errors
    /// [`DeviceError`] where a kernel does not compile or run.
    pub fn roof(&self) -> Result<Roof, DeviceError> {
        self.context.enter()?;
        let architecture = self.found.architecture();
        let codes = Codes::new(self.origins.clone(), None, architecture.clone(), None);
        let code = codes.made("roof", "roof.cu", roof_unit(&architecture))?;
        let mut module = Module(null_mut());
        // SAFETY: an image that NVRTC made for this GPU.
        unsafe { cuda!(cuModuleLoadData(&raw mut module.0, code.as_ptr().cast())) }?;
        let bytes = BYTES.min(self.memory()?.0 / 4) / 4096 * 4096;
        let block = Block::new(&self.context, "the measurement of memory", bytes)?;
        block.fill(0..bytes, 0x5a)?;
        let out = Block::new(&self.context, "the measurement of memory", 4)?;
        let blocks = BLOCKS * self.found.cores as u32;

        let (from, count, to) = (block.start(), (bytes / 16) as u64, out.start());
        let read = module.function(c"read_all")?;
        let mut arguments = [(&raw const from).cast(), (&raw const count).cast(), (&raw const to).cast()];
        let seconds = self.best(read, blocks, READERS, &mut arguments)?;
        let bytes_per_second = bytes as f64 / seconds;

        let rounds = ROUNDS;
        let multiply = module.function(c"multiply")?;
        let mut arguments = [(&raw const rounds).cast(), (&raw const to).cast()];
        let seconds = self.best(multiply, blocks, MULTIPLIERS, &mut arguments)?;
        let warps = f64::from(blocks * MULTIPLIERS / 32);
        Ok(Roof { bytes_per_second, flops_per_second: warps * f64::from(ROUNDS) * ROUND / seconds })
    }

    /// The seconds of the fastest of several launches, the first aside. A launch and a wait cost some microseconds, and each of
    /// these runs for half a millisecond or more.
    fn best(
        &self,
        function: sys::CUfunction,
        blocks: u32,
        threads: u32,
        arguments: &mut [*const c_void],
    ) -> Result<f64, DeviceError> {
        let mut best = f64::INFINITY;
        for pass in 0..=PASSES {
            self.context.wait()?;
            let began = Instant::now();
            let pointers = arguments.as_mut_ptr().cast::<*mut c_void>();
            let stream = self.context.stream();
            // SAFETY: the arguments are those of the kernel, which reads and writes inside of the blocks that they name.
            unsafe {
                cuda!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, null_mut()))
            }?;
            self.context.wait()?;
            if pass > 0 {
                best = best.min(began.elapsed().as_secs_f64());
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvrtc::Compiler;

    /// Where NVRTC is (CI installs it for the kernels' texts), the source compiles for the oldest and the newest GPU.
    #[test]
    fn the_source_compiles() {
        let Ok(compiler) = Compiler::find(&[]) else { return };
        for architecture in ["sm_80", "sm_90a", "sm_120"] {
            let (source, options) = roof_unit(architecture);
            compiler.compile(&source, &options).unwrap();
        }
    }
}
