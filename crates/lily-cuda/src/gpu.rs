//! A GPU that can be used: opened, with machine code for its kernels or a compiler.

use std::path::PathBuf;
use std::sync::Arc;

use lily_model::DeviceError;
use lily_model::plan::Profile;

use crate::codes::Origins;
use crate::driver::Context;
use crate::found::{Found, Missing, find};
use crate::nvrtc::Compiler;
use crate::pack::Pack;

/// An NVIDIA GPU with everything that a [`crate::CudaDevice`] takes.
#[derive(Clone)]
pub struct Gpu {
    pub(crate) found: Found,
    pub(crate) origins: Origins,
    pub(crate) context: Arc<Context>,
}

impl Gpu {
    /// Opens GPU number `ordinal`. NVRTC and CUDA's headers are looked for in these folders of toolkits first;
    /// a program that carries kernels for this GPU does without.
    ///
    /// # Errors
    /// What is missing.
    pub fn open(ordinal: usize, toolkits: &[PathBuf]) -> Result<Self, Missing> {
        let found = find(ordinal)?;
        let pack = found.pack();
        let mut compiler = Compiler::find(toolkits).map(Arc::new);
        if pack.is_none_or(|pack| pack.kernels(&found.architecture()) == 0) {
            compiler = Ok(compiler?);
        }
        let origins = Origins { pack, compiler };
        let context = Context::open(ordinal).map_err(|e| Missing::Start(e.to_string()))?;
        Ok(Gpu { found, origins, context })
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

    /// One line for people: `NVIDIA H200 (CUDA device 0, sm_90a, driver API 13.0, NVRTC 13.0)`, or `no NVRTC`;
    /// machine code in the program that is damaged is named too.
    pub fn describe(&self) -> String {
        let (found, (major, minor)) = (&self.found, self.found.driver);
        let compiler = self.origins.compiler.as_ref();
        format!(
            "{} (CUDA device {}, {}, driver API {major}.{minor}, {}{})",
            found.name,
            found.ordinal,
            found.architecture(),
            compiler.map_or("no NVRTC".to_owned(), |c| format!("NVRTC {}", c.version())),
            Pack::damage().map_or("", |_| ", damaged machine code in this program is not used")
        )
    }
}
