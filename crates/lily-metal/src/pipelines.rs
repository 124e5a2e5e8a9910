//! Pipelines of the kernels that plans need: each text is compiled once, and each set of constants makes a pipeline of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lily_kernels::{Activation, Dispatch, Text, word_kind};
use lily_model::DeviceError;
use lily_model::device::{Progress, Watch};

use crate::gpu::{Gpu, Language, Limits};
use crate::offline::Offline;

/// How texts are compiled for a GPU: what a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The version of the language.
    pub language: Language,
    /// Tiles are multiplied by tensor operations.
    pub tensors: bool,
}

/// What a pipeline depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Variant {
    name: &'static str,
    constants: Vec<u32>,
    /// Of a threadgroup, among which registers are divided.
    threads: usize,
}

impl Variant {
    pub(crate) fn of(dispatch: &Dispatch) -> Self {
        let threads = dispatch.threads.iter().product();
        Variant { name: dispatch.text.name, constants: dispatch.constants.clone(), threads }
    }
}

/// A pipeline, and what it allows.
pub(crate) struct Pipeline<G: Gpu> {
    pub(crate) pipeline: G::Pipeline,
    pub(crate) limits: Limits,
}

impl<G: Gpu> Clone for Pipeline<G> {
    fn clone(&self) -> Self {
        Pipeline { pipeline: self.pipeline.clone(), limits: self.limits }
    }
}

/// All pipelines of a device.
pub(crate) struct Pipelines<G: Gpu> {
    gpu: G,
    dialect: Dialect,
    activation: Activation,
    watch: Option<Watch>,
    libraries: HashMap<&'static str, Arc<G::Library>>,
    made: HashMap<Variant, Pipeline<G>>,
}

impl<G: Gpu> Pipelines<G> {
    pub(crate) fn new(gpu: &G, dialect: Dialect, activation: Activation, watch: Option<Watch>) -> Self {
        let (libraries, made) = (HashMap::new(), HashMap::new());
        Pipelines { gpu: gpu.clone(), dialect, activation, watch, libraries, made }
    }

    pub(crate) fn get(&self, variant: &Variant) -> Option<&Pipeline<G>> {
        self.made.get(variant)
    }

    /// Makes those that are not there, several at the same time.
    ///
    /// # Errors
    /// The first text that the compiler does not take, in its words.
    pub(crate) fn load(&mut self, dispatches: &[Dispatch]) -> Result<(), DeviceError> {
        let mut missing: HashMap<Variant, &Dispatch> = HashMap::new();
        for dispatch in dispatches {
            let variant = Variant::of(dispatch);
            if !self.made.contains_key(&variant) {
                missing.insert(variant, dispatch);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let mut texts: Vec<&'static Text> = missing.values().map(|d| d.text).collect();
        texts.sort_by_key(|text| text.name);
        texts.dedup_by_key(|text| text.name);
        texts.retain(|text| !self.libraries.contains_key(text.name));
        let mut missing: Vec<(Variant, &Dispatch)> = missing.into_iter().collect();
        missing.sort_by(|a, b| a.0.cmp(&b.0));

        let of = texts.len() + missing.len();
        let done = AtomicUsize::new(0);
        let libraries = in_threads(&texts, |text| {
            let library = self.library(text);
            self.tell(&done, of);
            library
        })?;
        self.libraries.extend(texts.iter().zip(libraries).map(|(text, library)| (text.name, library)));
        let pipelines = in_threads(&missing, |(variant, dispatch)| {
            let pipeline = self.pipeline(variant, dispatch);
            self.tell(&done, of);
            pipeline
        })?;
        self.made.extend(missing.into_iter().map(|(variant, _)| variant).zip(pipelines));
        self.gpu.keep_pipelines();
        Ok(())
    }

    fn tell(&self, done: &AtomicUsize, of: usize) {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(watch) = &self.watch {
            watch(Progress::Compiling { done, of });
        }
    }

    fn library(&self, text: &Text) -> Result<Arc<G::Library>, DeviceError> {
        let language = self.dialect.language;
        let made = Offline::embedded().library(&self.gpu, text, self.activation, self.dialect);
        made.map(Arc::new).map_err(|error| {
            let (path, system, version) = (text.path, &self.gpu.facts().system, language.name());
            let act = self.activation.name();
            DeviceError::Failed(format!("{system} does not compile {path} (Metal {version}, {act}): {error}"))
        })
    }

    fn pipeline(&self, variant: &Variant, dispatch: &Dispatch) -> Result<Pipeline<G>, DeviceError> {
        let text = dispatch.text;
        let failed = |what: String| {
            let constants = &variant.constants;
            DeviceError::Failed(format!("kernel {} with constants {constants:?}: {what}", text.name))
        };
        let library =
            self.libraries.get(text.name).ok_or_else(|| failed("its text was not compiled".into()))?;
        let kinds = text.constants.iter().map(|(kind, _)| word_kind(kind));
        let constants = kinds.zip(&variant.constants).enumerate();
        let constants: Option<Vec<_>> =
            constants.map(|(index, (kind, word))| Some((index, kind?, *word))).collect();
        let constants = constants
            .filter(|all| all.len() == text.constants.len() && all.len() == variant.constants.len())
            .ok_or_else(|| failed("they are not those of its text".into()))?;
        let made = self.gpu.pipeline(library, text.name, &constants, variant.threads);
        let (pipeline, limits) = made.map_err(|error| failed(error.to_string()))?;
        if limits.threads < variant.threads {
            return Err(failed(format!(
                "it is launched with {} threads, and its registers allow {} on this GPU",
                variant.threads, limits.threads
            )));
        }
        if limits.simdgroup != 32 {
            let found = limits.simdgroup;
            return Err(failed(format!("simdgroups have {found} threads on this GPU; wanted 32")));
        }
        Ok(Pipeline { pipeline, limits })
    }
}

/// The result for each, in order, or the first error.
fn in_threads<T: Sync, R: Send>(
    items: &[T],
    make: impl Fn(&T) -> Result<R, DeviceError> + Sync,
) -> Result<Vec<R>, DeviceError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<R, DeviceError>>>> =
        Mutex::new(items.iter().map(|_| None).collect());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let made = make(item);
            results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(made);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 1..processors.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let missing = || Err(DeviceError::Failed("a kernel was not compiled".into()));
    results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}
