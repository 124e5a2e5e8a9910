//! Texts that were compiled with the program (build.rs), and their way to a library of the GPU: those, or macOS compiles the source.

use lily_kernels::{Activation, Text, bindings, metal_unit};

use crate::gpu::{Gpu, GpuError};
use crate::pipelines::Dialect;

/// A compiled text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    text: &'static str,
    activation: &'static str,
    tensors: bool,
    bytes: &'static [u8],
}

/// What was compiled with a program.
#[derive(Clone, Copy, Debug)]
pub struct Offline {
    /// The language's version; empty where nothing was.
    language: &'static str,
    /// The compiler, or why nothing was compiled.
    words: &'static str,
    libraries: &'static [Library],
}

/// With this one.
static EMBEDDED: Offline = include!(concat!(env!("OUT_DIR"), "/offline.rs"));

impl Offline {
    /// What was compiled with this program.
    pub fn embedded() -> &'static Self {
        &EMBEDDED
    }

    fn find(&self, text: &Text, activation: Activation, dialect: Dialect) -> Option<&'static [u8]> {
        if self.language != dialect.language.name() {
            return None;
        }
        let is_it = |library: &&Library| {
            (library.text, library.activation, library.tensors)
                == (text.name, activation.name(), dialect.tensors)
        };
        self.libraries.iter().find(is_it).map(|library| library.bytes)
    }

    /// A text for a GPU. What the system does not take of that which was compiled before, it compiles itself.
    pub(crate) fn library<G: Gpu>(
        &self,
        gpu: &G,
        text: &Text,
        activation: Activation,
        dialect: Dialect,
    ) -> Result<G::Library, GpuError> {
        let before = self.find(text, activation, dialect).map(|bytes| gpu.precompiled(bytes));
        match before {
            Some(Ok(library)) => Ok(library),
            None | Some(Err(_)) => {
                gpu.library(&metal_unit(text, activation, dialect.tensors), dialect.language)
            }
        }
    }

    /// Where the kernels of this GPU come from: of those that were compiled before, one is tried.
    pub fn describe<G: Gpu>(&self, gpu: &G, dialect: Dialect) -> String {
        let (language, here) = (self.language, dialect.language.name());
        let from_source = |why: String| format!("kernels compiled at the start ({why})");
        if language.is_empty() {
            return from_source(format!("none were compiled with the program: {}", self.words));
        }
        match self
            .find(&bindings::rms_norm::TEXT, Activation::F32, dialect)
            .map(|bytes| gpu.precompiled(bytes))
        {
            Some(Ok(_)) => format!("kernels compiled with the program (Metal {language}, {})", self.words),
            Some(Err(error)) => from_source(format!("the system does not take the program's: {error}")),
            None => {
                from_source(format!("the program has them as Metal {language}, and the system takes {here}"))
            }
        }
    }
}

#[cfg(test)]
#[path = "../build/offline.rs"]
mod build;

#[cfg(test)]
mod tests;
