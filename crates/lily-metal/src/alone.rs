//! One launch by itself: for probes, and for the cases of kernels.

use std::time::Duration;

use lily_kernels::{Activation, Dispatch, word_kind};

use crate::gpu::{Block, Commands, Fault, Gpu, GpuError, Submitted};
use crate::offline::Offline;
use crate::pipelines::Dialect;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pipeline of a launch.
pub(crate) fn pipeline<G: Gpu>(
    gpu: &G,
    dialect: Dialect,
    dispatch: &Dispatch,
    activation: Activation,
) -> Result<G::Pipeline, GpuError> {
    let text = dispatch.text;
    let library = Offline::embedded().library(gpu, text, activation, dialect)?;
    let kinds = text.constants.iter().map(|(kind, _)| word_kind(kind));
    let constants: Vec<_> = kinds
        .zip(&dispatch.constants)
        .enumerate()
        .filter_map(|(index, (kind, word))| Some((index, kind?, *word)))
        .collect();
    let threads = dispatch.threads.iter().product();
    let (pipeline, limits) = gpu.pipeline(&library, text.name, &constants, threads)?;
    if limits.threads < threads {
        let text = format!("launched with {threads} threads, and its registers allow {}", limits.threads);
        return Err(GpuError::new(Fault::Compiler, text));
    }
    Ok(pipeline)
}

/// Writes a launch down, with these buffers by number.
pub(crate) fn launch<'a, C: Commands>(
    commands: &mut C,
    pipeline: &C::Pipeline,
    dispatch: &Dispatch,
    buffers: impl Iterator<Item = (usize, &'a C::Buffer)>,
) where
    C::Buffer: 'a,
{
    commands.pipeline(pipeline);
    buffers.for_each(|(number, buffer)| commands.buffer(number, buffer, 0));
    if let Some(number) = dispatch.text.value_buffer() {
        commands.words(number, &dispatch.params);
    }
    for (index, bytes) in dispatch.threadgroup_bytes.iter().enumerate() {
        commands.threadgroup_memory(index, *bytes);
    }
    commands.dispatch(dispatch.grid, dispatch.threads);
}

/// Compiles a launch's text, runs it over these buffers (number and content), and returns what they hold then.
pub(crate) fn run<G: Gpu>(
    gpu: &G,
    dialect: Dialect,
    dispatch: &Dispatch,
    activation: Activation,
    buffers: &[(usize, &[u8])],
) -> Result<Vec<Vec<u8>>, GpuError> {
    let pipeline = pipeline(gpu, dialect, dispatch, activation)?;
    let filled = |bytes: &[u8]| {
        gpu.buffer("alone", bytes.len().max(1), &mut |to| to[..bytes.len()].copy_from_slice(bytes))
    };
    let made: Vec<(usize, G::Buffer, usize)> = buffers
        .iter()
        .map(|(number, bytes)| Ok((*number, filled(bytes)?, bytes.len())))
        .collect::<Result<_, GpuError>>()?;
    let mut commands = gpu.begin(dispatch.text.name)?;
    launch(&mut commands, &pipeline, dispatch, made.iter().map(|(number, buffer, _)| (*number, buffer)));
    if commands.submit().wait(PATIENCE)?.is_none() {
        let text = format!("not done after {} seconds", PATIENCE.as_secs());
        return Err(GpuError::new(Fault::Timeout, text));
    }
    let read = |(_, buffer, len): &(usize, G::Buffer, usize)| {
        let mut bytes = vec![0; *len];
        buffer.read(0, &mut bytes);
        bytes
    };
    Ok(made.iter().map(read).collect())
}
