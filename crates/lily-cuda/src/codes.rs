//! Machine code of the kernels: from disk, or from NVRTC.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lily_kernels::{Activation, CUDA_HEADERS, CUDA_OPTIONS, Dispatch, Text, cuda_unit};
use lily_model::DeviceError;

use crate::cubins::{Cubins, Key};
use crate::device::{Progress, Watch};
use crate::native;
use crate::nvrtc::Compiler;

/// The most threads that compile at the same time: each takes some hundred megabytes.
const COMPILERS: usize = 16;

/// What a kernel's machine code depends on.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The text.
    pub text: &'static Text,
    /// The type of activations.
    pub activation: Activation,
    /// Function constants, as words.
    pub constants: Vec<u32>,
    /// Threads of a threadgroup, among which registers are divided.
    pub threads: usize,
}

impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

/// By the text's name, which is unique.
pub(crate) type Id = (&'static str, Activation, Vec<u32>, usize);

impl Variant {
    /// What a dispatch needs.
    pub fn of(dispatch: &Dispatch, activation: Activation) -> Self {
        let (constants, threads) = (dispatch.constants.clone(), dispatch.threads.iter().product());
        Variant { text: dispatch.text, activation, constants, threads }
    }

    pub(crate) fn id(&self) -> Id {
        (self.text.name, self.activation, self.constants.clone(), self.threads)
    }

    /// Source and options for NVRTC; the folder of NVIDIA's headers comes from the compiler.
    pub fn unit(&self, architecture: &str) -> (String, Vec<String>) {
        let mut options = vec![format!("--gpu-architecture={architecture}")];
        options.extend(CUDA_OPTIONS.iter().map(|o| (*o).to_owned()));
        options.push(format!("-DLAUNCH_THREADS={}", self.threads));
        let constant = |(i, value)| format!("-DFUNCTION_CONSTANT_{i}={value}");
        options.extend(self.constants.iter().enumerate().map(constant));
        let unit = if native::is_native(self.text) {
            native::unit(self.text, self.activation)
        } else {
            cuda_unit(self.text, self.activation)
        };
        (unit, options)
    }
}

/// Makes machine code for one architecture. Needs no GPU.
pub struct Codes {
    compiler: Arc<Compiler>,
    cubins: Cubins,
    architecture: String,
    watch: Option<Watch>,
}

impl Codes {
    /// For an architecture (`sm_90a`), keeping what was compiled in a folder.
    pub fn new(
        compiler: Arc<Compiler>,
        cubins: Option<PathBuf>,
        architecture: String,
        watch: Option<Watch>,
    ) -> Self {
        Codes { compiler, cubins: Cubins(cubins), architecture, watch }
    }

    /// Of `sm_90a`, 90.
    pub(crate) fn capability(&self) -> u32 {
        let digits: String = self.architecture.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    }

    /// NVRTC's version.
    pub fn compiler(&self) -> &str {
        self.compiler.version()
    }

    /// Machine code of each, in order; what nobody compiled before is compiled, several at the same time.
    ///
    /// # Errors
    /// The first text that does not compile, with the compiler's log.
    pub fn of(&self, variants: &[Variant]) -> Result<Vec<Vec<u8>>, DeviceError> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let codes = Mutex::new(vec![None; variants.len()]);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(variant) = variants.get(at) else { return };
                let code = self.code(variant);
                codes.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(code);
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(watch) = &self.watch {
                    watch(Progress::Compiling { done, of: variants.len() });
                }
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        std::thread::scope(|scope| {
            for _ in 1..processors.min(COMPILERS).min(variants.len()) {
                scope.spawn(work);
            }
            work();
        });
        let codes = codes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let missing = || Err(DeviceError::Failed("a kernel was not compiled".into()));
        codes.into_iter().map(|code| code.unwrap_or_else(missing)).collect()
    }

    fn code(&self, variant: &Variant) -> Result<Vec<u8>, DeviceError> {
        let (source, options) = variant.unit(&self.architecture);
        let key = Key::new(variant.text.name, &source, CUDA_HEADERS, &options, self.compiler.version());
        if let Some(code) = self.cubins.load(&key) {
            return Ok(code);
        }
        let code = self.compiler.compile(&source, &options).map_err(|log| {
            let (path, version) = (variant.text.path, self.compiler.version());
            DeviceError::Failed(format!(
                "NVRTC {version} does not compile {path} ({}): {log}",
                options.join(" ")
            ))
        })?;
        self.cubins.store(&key, &code);
        Ok(code)
    }
}
