//! The CUDA device: executes plans on an NVIDIA GPU through the texts of the kernels, which NVRTC compiles for the GPU that is
//! there.
//!
//! The driver and NVRTC are looked for when they are needed, so a binary with this crate in it builds and runs where neither is;
//! [`Missing`] says what it would take. A release carries the machine code of its kernels ([`Pack`]); what NVRTC made is kept on disk. One stream runs everything in order; a decode plan is
//! captured once into a CUDA graph and replayed.
//!
//! An error of CUDA is a [`lily_model::DeviceError`] with the call and CUDA's own name and text. Most of them end the device's
//! context: from then on every call fails with the first one.

mod answers;
mod buffers;
mod codes;
mod cubins;
mod device;
mod driver;
mod found;
mod gpu;
mod graph;
mod hand_over;
mod memory;
mod modules;
mod native;
mod nvrtc;
mod pack;
mod pool;
mod prepared;
mod roof;
mod single;
mod upload;

/// What a plan leaves to the host.
mod host {
    pub(crate) use lily_model::device::group;
}

pub use answers::answers;
pub use codes::{Codes, Origins, Variant};
pub use device::{CudaDevice, CudaOptions, Progress, Watch};
pub use found::{Found, LEAST_CAPABILITY, Missing, devices, find};
pub use gpu::Gpu;
pub use native::KernelSet;
pub use nvrtc::{Compiler, well_known_folders};
pub use pack::{Pack, Packer};
pub use prepared::{scratch_bytes, variants};
pub use roof::{Roof, roof_unit};
pub use single::Single;
