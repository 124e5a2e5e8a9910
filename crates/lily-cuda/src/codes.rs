//! Machine code of the kernels: from the program itself, from disk, or from NVRTC.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lily_kernels::{Activation, CUDA_HEADERS, CUDA_OPTIONS, Dispatch, Text, cuda_unit};
use lily_model::DeviceError;

use crate::cubins::{Cubins, Key};
use crate::device::{Progress, Watch};
use crate::found::Missing;
use crate::native;
use crate::nvrtc::Compiler;
use crate::pack::Pack;

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

/// Where machine code comes from on this machine.
#[derive(Clone)]
pub struct Origins {
    /// The one in the program, where the driver loads its code.
    pub pack: Option<&'static Pack>,
    /// NVRTC, or why it is not there.
    pub compiler: Result<Arc<Compiler>, Missing>,
}

/// Makes machine code for one architecture. Needs no GPU.
pub struct Codes {
    origins: Origins,
    cubins: Cubins,
    architecture: String,
    watch: Option<Watch>,
}

impl Codes {
    /// For an architecture (`sm_90a`), keeping what was compiled in a folder.
    pub fn new(
        origins: Origins,
        cubins: Option<PathBuf>,
        architecture: String,
        watch: Option<Watch>,
    ) -> Self {
        Codes { origins, cubins: Cubins(cubins), architecture, watch }
    }

    /// Of `sm_90a`, 90.
    pub(crate) fn capability(&self) -> u32 {
        let digits: String = self.architecture.chars().filter(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
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
        self.made(variant.text.name, variant.text.path, variant.unit(&self.architecture))
    }

    /// Machine code of a source with its options: from the program, from the folder, or compiled now.
    pub(crate) fn made(
        &self,
        name: &str,
        path: &str,
        (source, options): (String, Vec<String>),
    ) -> Result<Vec<u8>, DeviceError> {
        if let Some(code) = self.origins.pack.and_then(|pack| pack.code(&source, &options)) {
            return Ok(code);
        }
        let compiler = self.origins.compiler.as_ref().map_err(|missing| self.nowhere(path, missing))?;
        let key = Key::new(name, &source, CUDA_HEADERS, &options, compiler.version());
        if let Some(code) = self.cubins.load(&key) {
            return Ok(code);
        }
        let code = compiler.compile(&source, &options).map_err(|log| {
            let (version, options) = (compiler.version(), options.join(" "));
            DeviceError::Failed(format!("NVRTC {version} does not compile {path} ({options}): {log}"))
        })?;
        self.cubins.store(&key, &code);
        Ok(code)
    }

    /// A kernel that is not in the program, and that nobody can compile.
    fn nowhere(&self, path: &str, missing: &Missing) -> DeviceError {
        let count = self.origins.pack.map_or(0, |pack| pack.kernels(&self.architecture));
        DeviceError::Failed(format!(
            "{path} in this size is not among the {count} kernels for {} that this program carries, and nothing compiles it: {missing}",
            self.architecture
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Packer;

    fn missing() -> Missing {
        Missing::Nvrtc { looked: "/nowhere".into() }
    }

    fn codes(pack: Option<Vec<u8>>, architecture: &str) -> Codes {
        let pack = pack.map(|bytes| &*Box::leak(Box::new(Pack::read(bytes).unwrap())));
        Codes::new(Origins { pack, compiler: Err(missing()) }, None, architecture.to_owned(), None)
    }

    #[test]
    fn a_kernel_of_the_pack_needs_no_compiler_and_another_names_both() {
        let of = |threads| Variant {
            text: lily_kernels::bindings::TEXTS[0],
            activation: Activation::Bf16,
            constants: vec![7, 1],
            threads,
        };
        let mut packer = Packer::new("13.5");
        let (source, options) = of(64).unit("sm_90a");
        packer.add("sm_90a", &source, &options, b"code");
        let pack = packer.finish();
        let hopper = codes(Some(pack.clone()), "sm_90a");
        assert_eq!(hopper.of(&[of(64), of(64)]).unwrap(), [b"code", b"code"]);
        let cases = [
            (hopper, of(128), "the 1 kernels for sm_90a"),
            (codes(Some(pack), "sm_80"), of(64), "the 0 kernels for sm_80"),
            (codes(None, "sm_90a"), of(64), "the 0 kernels for sm_90a"),
        ];
        for (codes, variant, count) in cases {
            let error = codes.of(&[variant]).unwrap_err().to_string();
            let words = [of(64).text.path, count, "NVRTC", "/nowhere", "pip install"];
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
