//! The kernels that plans need, each loaded once.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_kernels::cuda_symbol;
use lily_model::DeviceError;

use crate::codes::{Codes, Id, Variant};
use crate::driver::{Context, CudaError, cuda};

/// Threadgroup memory that a launch may have without asking for more, and the most that every GPU since Ampere gives.
const PLAIN_SHARED: usize = 48 << 10;
const MOST_SHARED: usize = 99 << 10;

/// A kernel on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) function: sys::CUfunction,
    /// Bytes of threadgroup memory that it has by itself.
    fixed_shared: usize,
}

impl Function {
    /// Lets launches have so many bytes of threadgroup memory beside the kernel's own.
    pub(crate) fn allow_shared(&self, what: &str, bytes: usize) -> Result<(), DeviceError> {
        if self.fixed_shared + bytes > MOST_SHARED {
            return Err(DeviceError::Failed(format!(
                "{what} takes {} bytes of threadgroup memory; wanted at most {MOST_SHARED}",
                self.fixed_shared + bytes
            )));
        }
        if self.fixed_shared + bytes > PLAIN_SHARED {
            let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function's module lives as long as the context.
            unsafe { cuda!(cuFuncSetAttribute(self.function, which, bytes as i32)) }?;
        }
        Ok(())
    }
}

/// Compiled and loaded kernels. Modules stay loaded until the context ends.
pub(crate) struct Modules {
    context: Arc<Context>,
    codes: Codes,
    functions: HashMap<Id, Function>,
    modules: Vec<sys::CUmodule>,
}

// SAFETY: the driver's API takes its handles on any thread.
unsafe impl Send for Modules {}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>, codes: Codes) -> Self {
        Modules { context: context.clone(), codes, functions: HashMap::new(), modules: Vec::new() }
    }

    /// Whether the GPU can start a kernel before the one in front of it has ended: since Hopper.
    pub(crate) fn may_start_early(&self) -> bool {
        self.codes.capability() >= 90
    }

    /// A kernel that was loaded.
    pub(crate) fn get(&self, variant: &Variant) -> Option<Function> {
        self.functions.get(&variant.id()).copied()
    }

    /// Loads all of these, compiling what nobody compiled before, several at the same time.
    pub(crate) fn load(&mut self, variants: impl Iterator<Item = Variant>) -> Result<(), DeviceError> {
        let mut missing: HashMap<Id, Variant> = HashMap::new();
        for variant in variants {
            let id = variant.id();
            if !self.functions.contains_key(&id) {
                missing.entry(id).or_insert(variant);
            }
        }
        let missing: Vec<Variant> = missing.into_values().collect();
        for (variant, code) in missing.iter().zip(self.codes.of(&missing)?) {
            let function = self.install(variant, &code)?;
            self.functions.insert(variant.id(), function);
        }
        Ok(())
    }

    fn install(&mut self, variant: &Variant, code: &[u8]) -> Result<Function, DeviceError> {
        use sys::CUfunction_attribute as Attribute;
        let name = variant.text.name;
        let named = |error: CudaError| DeviceError::Failed(format!("kernel {name}: {error}"));
        let symbol = CString::new(cuda_symbol(variant.text)).unwrap_or_default();
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: an image that NVRTC made for this GPU (a damaged one is refused), and the name of the kernel in it.
        unsafe {
            cuda!(cuModuleLoadData(&raw mut module, code.as_ptr().cast())).map_err(named)?;
            self.modules.push(module);
            cuda!(cuModuleGetFunction(&raw mut function, module, symbol.as_ptr())).map_err(named)?;
        }
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: writes a number.
            unsafe { cuda!(cuFuncGetAttribute(&raw mut value, which, function)) }.map(|()| value as usize)
        };
        let most = attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK).map_err(named)?;
        if most < variant.threads {
            return Err(DeviceError::Failed(format!(
                "kernel {name} is launched with {} threads, and its registers allow {most} on this GPU",
                variant.threads
            )));
        }
        let fixed_shared = attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).map_err(named)?;
        Ok(Function { function, fixed_shared })
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        if self.context.enter().is_ok() && self.context.wait().is_ok() {
            for module in &self.modules {
                // SAFETY: loaded once, and nothing runs.
                let _ = unsafe { cuda!(cuModuleUnload(*module)) };
            }
        }
    }
}
