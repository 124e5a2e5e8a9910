//! A GPU that can be used: opened, with a compiler for its kernels.

use std::path::PathBuf;
use std::sync::Arc;

use lily_model::DeviceError;
use lily_model::plan::Profile;

use crate::driver::Context;
use crate::found::{Found, Missing, find};
use crate::nvrtc::Compiler;

/// An NVIDIA GPU with everything that a [`crate::CudaDevice`] takes.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) found: Found,
    pub(crate) compiler: Arc<Compiler>,
    pub(crate) context: Arc<Context>,
}

impl Gpu {
    /// Opens GPU number `ordinal`. NVRTC and CUDA's headers are looked for in these folders of toolkits first.
    ///
    /// # Errors
    /// What is missing.
    pub fn open(ordinal: usize, toolkits: &[PathBuf]) -> Result<Self, Missing> {
        let found = find(ordinal)?;
        let compiler = Arc::new(Compiler::find(toolkits)?);
        let context = Context::open(ordinal).map_err(|e| Missing::Start(e.to_string()))?;
        Ok(Gpu { found, compiler, context })
    }

    /// What it is.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// What plans for it are built by.
    pub fn profile(&self) -> Profile {
        Profile::cuda(&self.found.name, self.found.cores, self.found.bandwidth)
    }

    /// Free and total memory, in bytes.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] where the driver does not answer.
    pub fn memory(&self) -> Result<(usize, usize), DeviceError> {
        self.context.enter()?;
        Ok(self.context.memory()?)
    }

    /// One line for people: `NVIDIA H200 (CUDA device 0, sm_90a, driver API 13.0, NVRTC 13.0)`.
    pub fn describe(&self) -> String {
        let (found, (major, minor)) = (&self.found, self.found.driver);
        format!(
            "{} (CUDA device {}, {}, driver API {major}.{minor}, NVRTC {})",
            found.name,
            found.ordinal,
            found.architecture(),
            self.compiler.version()
        )
    }
}
