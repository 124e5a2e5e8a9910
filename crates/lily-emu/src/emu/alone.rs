//! One launch by itself, for tests of what launches kernels in other ways.

use lily_kernels::{Activation, Dispatch};
use lily_model::DeviceError;

use super::ffi::{Exclusive, Launch, Texts};
use super::workers::Workers;

/// The compiled texts, and threads to run them.
pub struct EmuKernels {
    texts: Texts,
    workers: Workers,
}

impl EmuKernels {
    /// With so many host threads.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        Ok(EmuKernels { texts: Texts::new(), workers: Workers::new(threads)? })
    }

    /// Runs a launch to its end, threadgroups and threads in order.
    ///
    /// # Safety
    /// Each buffer is what the text takes under its number (anything but null for the one by value): long enough, aligned as it
    /// reads it, and meanwhile touched by nothing else.
    pub unsafe fn run(
        &self,
        dispatch: &Dispatch,
        activation: Activation,
        buffers: Vec<*mut u8>,
    ) -> Result<(), DeviceError> {
        let name = dispatch.text.name;
        let text = self.texts.get(name, activation);
        let text = text.ok_or_else(|| DeviceError::Failed(format!("the emulator has no text {name}")))?;
        // SAFETY: the caller's promise.
        let launch = unsafe { Launch::new(text, dispatch, buffers) };
        let _exclusive = Exclusive::new(text, &dispatch.constants, 0);
        self.workers.run(launch)
    }
}
