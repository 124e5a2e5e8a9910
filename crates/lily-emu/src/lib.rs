//! The emulator device: executes plans through the texts of the kernels that GPUs run, compiled for this CPU with the shims of
//! `lily-kernels`. It is for tests: slow, and careful. Launches of a stage run in a random order, the threads of a
//! threadgroup may be shuffled, memory that a plan has not written yet is NaN, and with the feature `touch` the bytes that
//! each launch touches are recorded.
//!
//! **A fault of a text ends the process** (status 3, after a line that begins with `emu:`): a barrier that not every thread
//! reaches, a lane that does not exist, more threadgroup memory than a GPU has. Accesses outside of a buffer are found by the
//! kernels' own tests, under sanitizers; here they are as undefined as on a GPU.
//!
//! x86-64 Linux only, and only with the feature `emu`, which needs clang 19: without it the crate is empty.

#[cfg(all(feature = "emu", not(all(target_os = "linux", target_arch = "x86_64"))))]
compile_error!("the emulator device runs on x86-64 Linux only: build without the feature `emu`");

#[cfg(all(feature = "emu", target_os = "linux", target_arch = "x86_64"))]
mod emu {
    mod alone;
    mod bind;
    mod device;
    mod ffi;
    mod hand_over;
    mod memory;
    mod workers;

    pub use alone::EmuKernels;
    #[cfg(feature = "touch")]
    pub use device::Touched;
    pub use device::{EmuDevice, EmuOptions};
}

#[cfg(all(feature = "emu", target_os = "linux", target_arch = "x86_64"))]
pub use emu::*;
