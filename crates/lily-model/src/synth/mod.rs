//! Random models of true size: every tensor of a [`Preset`], to be written to disk or made where it is needed.
//!
//! A tensor's bytes are a function of the seed, its name and the position: any range of any tensor can be made alone,
//! in parallel, on any machine and on any device that has 64-bit integers, with the same result ([`Contents`]). The
//! gains in `layout.rs` keep activations near 1 through any number of layers and spread tokens evenly over experts.

mod contents;
mod files;
mod folder;
mod layout;
mod sizes;
#[cfg(test)]
mod tests;
mod write;

pub use contents::{Contents, HotRows, draw};
pub use files::{Streamed, SynthFile, SynthFiles};
pub(crate) use folder::DOCUMENTS;
pub use folder::{FolderError, SynthFolder};
pub use layout::SynthTensor;
pub use sizes::SizeError;
pub(crate) use sizes::check_layers;
pub use write::{Progress, Written};

use crate::{Preset, TensorId, Weights};

/// How tokens spread over the experts of a random model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// Evenly.
    #[default]
    Uniform,
    /// A ninth of the experts takes most of the tokens: the busiest has about eight times the mean, with 256 experts of which 8 are
    /// active. Their rows of the router are four times as large, so that their logits are among the largest for every fourth token;
    /// no size and no other tensor differs.
    Skewed,
}

/// A random model.
#[derive(Clone, Debug)]
pub struct Synth {
    preset: Preset,
    weights: Weights,
    tensors: Vec<SynthTensor>,
    /// Position in `tensors` by id.
    by_id: Vec<usize>,
}

impl Synth {
    /// The model of these sizes; another seed is another model. Nothing of the tensors' size is allocated.
    ///
    /// # Errors
    /// With sizes that no model has, or that a checkpoint of that model would not be accepted with.
    pub fn new(preset: Preset, seed: u64) -> Result<Synth, SizeError> {
        Synth::with_routing(preset, seed, Routing::Uniform)
    }

    /// The same model, whose router may spread tokens unevenly.
    ///
    /// # Errors
    /// As [`Synth::new`].
    pub fn with_routing(preset: Preset, seed: u64, routing: Routing) -> Result<Synth, SizeError> {
        sizes::check(&preset)?;
        let weights = preset.weights();
        let tensors = layout::tensors(&preset, &weights, seed, routing);
        let mut by_id = vec![0; tensors.len()];
        for (i, tensor) in tensors.iter().enumerate() {
            by_id[tensor.id.0 as usize] = i;
        }
        Ok(Synth { preset, weights, tensors, by_id })
    }

    /// Sizes and formats.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// The tensors by role; their ids are those of [`Synth::tensor`].
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Every tensor, in the order of the files.
    pub fn tensors(&self) -> &[SynthTensor] {
        &self.tensors
    }

    /// A tensor of [`Synth::weights`]; `None` for ids of another model.
    pub fn tensor(&self, id: TensorId) -> Option<&SynthTensor> {
        self.by_id.get(id.0 as usize).map(|i| &self.tensors[*i])
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(SynthTensor::bytes).sum()
    }
}
