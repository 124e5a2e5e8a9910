//! What a CUDA device takes from this machine: where toolkits and machine code are, and bars on a terminal.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use lily_cuda::{CudaDevice, CudaOptions, Gpu, KernelSet, Missing, Progress};
use lily_model::device::{self, Device};
use lily_model::plan::Profile;
use lily_model::{Model, Weights};

use super::bar::Bar;
use super::memory::readable;

/// Of a GPU's memory, at least this much beside the weights: the context, the kernels, activations, a short conversation.
pub(super) const BESIDE_WEIGHTS: usize = 2 << 30;

/// Opens a GPU by its number.
pub(crate) fn open(number: usize) -> Result<Gpu, Missing> {
    Gpu::open(number, &toolkits(|name| std::env::var_os(name)))
}

/// Folders of CUDA toolkits that the usual variables name.
fn toolkits(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].into_iter().filter_map(variable);
    named.filter(|folder| !folder.is_empty()).map(PathBuf::from).collect()
}

/// The folder in which machine code is kept: the user's cache. Without one, kernels are compiled each time.
fn cubins(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("LOCALAPPDATA"));
    let cache = cache.or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("lily").join("cubins"))
}

/// Whether a model is worth trying: the exact budget is made where its context is known.
pub(super) fn fits(gpu: &str, weights: usize, available: usize) -> Result<()> {
    ensure!(
        weights.saturating_add(BESIDE_WEIGHTS) <= available,
        "the weights take {}, and {gpu} has {} free",
        readable(weights),
        readable(available)
    );
    Ok(())
}

/// A model on a GPU.
pub(super) fn device(
    gpu: &Gpu,
    kernels: KernelSet,
    profile: &Profile,
    model: &Arc<Model>,
    state_bytes: usize,
) -> Result<(Weights, Box<dyn Device>)> {
    let bar = Bar::default();
    let options = CudaOptions {
        kernels,
        cubins: cubins(|name| std::env::var_os(name)),
        watch: Some(Arc::new(move |progress| bar.show(told(progress)))),
        ..CudaOptions::new(profile.clone(), state_bytes)
    };
    let (weights, packing) = model.weights.packed();
    let device = CudaDevice::new(gpu, &model.geometry, &weights, &**model, &packing, &options);
    Ok((weights, Box::new(device.context("the CUDA device")?)))
}

fn told(progress: Progress) -> device::Progress {
    match progress {
        Progress::Compiling { done, of } => device::Progress::Compiling { done, of },
        Progress::Uploading { bytes, of } => device::Progress::Loading { bytes, of },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_from_the_usual_variables() {
        let of = |set: &'static [(&str, &str)]| {
            move |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
        };
        assert_eq!(toolkits(of(&[("CUDA_PATH", "/opt/c"), ("CUDA_HOME", "")])), [PathBuf::from("/opt/c")]);
        assert_eq!(cubins(of(&[("HOME", "/home/a")])), Some("/home/a/.cache/lily/cubins".into()));
        let both: &[_] = &[("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(cubins(of(both)), Some("/c/lily/cubins".into()));
        assert_eq!(cubins(of(&[("XDG_CACHE_HOME", "relative")])), None);
    }

    #[test]
    fn weights_that_do_not_fit_are_said_to() {
        assert!(fits("GPU", 20 << 30, 24 << 30).is_ok());
        let refused = fits("NVIDIA L4", 20 << 30, 21 << 30).unwrap_err().to_string();
        assert!(refused.contains("20.0 GiB") && refused.contains("NVIDIA L4 has 21.0 GiB free"), "{refused}");
    }
}
