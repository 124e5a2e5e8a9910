//! CUDA's driver and NVRTC of straw: as much of both as the CUDA device uses, over the emulator. Named `libcuda.so.1` and
//! `libnvrtc.so.13`, with an empty `cuda_fp16.h` beside, they let everything of that device run but the machine code
//! (scripts/test-straw). What the driver refuses, this refuses as well: calls without a context, copies beyond a block, anything but
//! launches in a capture. Memory is NaN until it is written.
//!
//! Everything runs when it is called, so what has to wait and does not is not found here.
#![allow(clippy::missing_safety_doc, non_snake_case, missing_docs)] // NVIDIA's documentation
#![allow(unreachable_pub)] // exported to C
#![allow(clippy::undocumented_unsafe_blocks)] // handles and pointers are the caller's, as in C
#![allow(clippy::unwrap_used)] // a test's own failures

mod compiler;
mod driver;
mod kernels;
