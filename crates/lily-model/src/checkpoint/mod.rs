//! The tensors of a model's safetensors files: one file, or shards with an index. Files are mapped and never copied;
//! tensors may start at any byte, because MLX's writer neither pads its header nor aligns tensors.

mod element;
mod header;
mod index;
mod mapping;
mod roles;
mod source;
mod warm;
pub(crate) mod write;

use std::{
    collections::{HashMap, hash_map::Entry},
    ops::Range,
    sync::OnceLock,
};

use crate::{
    error::{ModelError, quoted},
    synth::Synth,
    weights::{PlainTensor, TensorId},
};
use mapping::FileBytes;

pub use element::ElementType;
pub use mapping::Mapped;
pub use source::MemoryModel;
pub(crate) use {
    index::Index,
    roles::{assign, is_skipped},
    source::Source,
};

/// What MLX puts before the names of the text model's tensors and modules.
pub(crate) const PREFIX: &str = "language_model.";

pub(crate) const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";
/// Room for some hundred thousand tensors.
pub(crate) const INDEX_LIMIT: u64 = 16 << 20;

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Which of [`Checkpoint::files`].
    pub file: usize,
    /// Its bytes in that file.
    pub range: Range<usize>,
}

/// All tensors of a model, where they lie in its files.
///
/// Files on disk are mapped: opening reads only the headers, and pages of weights are read when they are first used.
/// The files must not be changed in place while a model uses them; cutting one off can end the process.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<CheckpointFile>,
    tensors: Vec<TensorInfo>,
    /// What says which tensors there are: the file, or the index.
    listing: String,
    /// The first bytes that belong to no tensor: for whoever finds no better reason to refuse the checkpoint.
    pub(crate) unclaimed: Option<ModelError>,
}

/// A file of a checkpoint.
#[derive(Debug)]
struct CheckpointFile {
    label: String,
    bytes: FileBytes,
}

impl Checkpoint {
    /// Opens the weight files of a model and checks their headers.
    pub(crate) fn open(source: &Source) -> Result<Checkpoint, ModelError> {
        // mlx-lm writes an index beside a single file too, so the index comes first.
        if source.has(INDEX_FILE) {
            let bytes = source.read(INDEX_FILE, INDEX_LIMIT, "the checkpoint")?;
            let index = Index::parse(&source.label(INDEX_FILE), &bytes)?;
            let mut checkpoint = Checkpoint::of_files(source, &index.shards, INDEX_FILE)?;
            checkpoint.check_index(&index)?;
            checkpoint.listing = index.file;
            return Ok(checkpoint);
        }
        if !source.has(SINGLE_FILE) {
            return Err(ModelError::NoWeights {
                file: source.label(SINGLE_FILE),
                index: source.label(INDEX_FILE),
            });
        }
        Checkpoint::of_files(source, &[SINGLE_FILE.to_owned()], "the model")
    }

    fn of_files(source: &Source, names: &[String], needed_by: &str) -> Result<Checkpoint, ModelError> {
        let mut checkpoint = Checkpoint {
            files: Vec::new(),
            tensors: Vec::new(),
            listing: source.label(SINGLE_FILE),
            unclaimed: None,
        };
        // All of them before the first is read, so that a download that was cut off is reported as such.
        if let Some(name) = names.iter().find(|name| !source.has(name)) {
            return Err(source.missing(name, needed_by));
        }
        let mut seen = HashMap::new();
        for (file, name) in names.iter().enumerate() {
            let (label, bytes) = (source.label(name), source.map(name, needed_by)?);
            let header = header::read(&label, bytes.as_slice())?;
            checkpoint.unclaimed = checkpoint.unclaimed.or(header.unclaimed);
            for entry in header.entries {
                match seen.entry(entry.name.clone()) {
                    Entry::Occupied(first) => {
                        let first: &usize = first.get();
                        let other = checkpoint.files.get(*first).map_or(&label, |f| &f.label).clone();
                        return Err(ModelError::DuplicateTensor {
                            tensor: quoted(&entry.name),
                            file: label,
                            other,
                        });
                    }
                    Entry::Vacant(slot) => slot.insert(file),
                };
                checkpoint.tensors.push(TensorInfo {
                    name: entry.name,
                    element: entry.element,
                    shape: entry.shape,
                    file,
                    range: entry.range,
                });
            }
            checkpoint.files.push(CheckpointFile { label, bytes });
        }
        Ok(checkpoint)
    }

    /// The index and the shards must say the same.
    fn check_index(&self, index: &Index) -> Result<(), ModelError> {
        let shard = |i: usize| index.shards.get(i).cloned().unwrap_or_default();
        let mut listed = index.shard_of.clone();
        for tensor in &self.tensors {
            match listed.remove(&tensor.name) {
                Some(file) if file == tensor.file => {}
                other => {
                    return Err(ModelError::NotInIndex {
                        file: self.files[tensor.file].label.clone(),
                        tensor: quoted(&tensor.name),
                        index: index.file.clone(),
                        wanted: other.map_or_else(|| "nowhere".to_owned(), |i| format!("in {}", shard(i))),
                    });
                }
            }
        }
        match listed.into_iter().next() {
            None => Ok(()),
            Some((tensor, file)) => Err(ModelError::MissingTensor {
                file: self.files.get(file).map(|f| f.label.clone()).unwrap_or_default(),
                tensor: quoted(&tensor),
                wanted: format!("what {} lists", index.file),
            }),
        }
    }

    /// Exactly a tensor's bytes, at any alignment.
    ///
    /// # Panics
    /// With an id of another checkpoint.
    pub fn bytes(&self, id: TensorId) -> &[u8] {
        let info = self.info(id);
        &self.files[info.file].bytes.as_slice()[info.range.clone()]
    }

    /// A tensor's name, type, shape and place.
    ///
    /// # Panics
    /// With an id of another checkpoint.
    pub fn info(&self, id: TensorId) -> &TensorInfo {
        &self.tensors[id.0 as usize]
    }

    /// Every tensor of the files, skipped ones included, by file and then by offset.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &TensorInfo)> {
        // A header holds far fewer than 2^32 tensors, and so do all files together.
        self.tensors.iter().enumerate().map(|(i, info)| (TensorId(i as u32), info))
    }

    /// Bytes of all tensors, skipped ones included.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(|info| info.range.len() as u64).sum()
    }

    /// Copies a tensor's bytes from byte `start` on. Of a random model they are made for that, and not kept.
    ///
    /// # Panics
    /// With an id of another checkpoint, or beyond the tensor.
    pub fn read(&self, id: TensorId, start: usize, into: &mut [u8]) {
        let info = self.info(id);
        assert!(start + into.len() <= info.range.len(), "{}", info.name);
        self.files[info.file].bytes.read(info.range.start + start, into);
    }

    /// Gives the memory of some bytes of a tensor back, where they can be read from the file again.
    ///
    /// # Panics
    /// With an id of another checkpoint, or a range that is not inside of the tensor.
    pub fn release(&self, id: TensorId, range: std::ops::Range<usize>) {
        let info = self.info(id);
        assert!(range.end <= info.range.len(), "{}", info.name);
        let (start, end) = (info.range.start + range.start, info.range.start + range.end);
        self.files[info.file].bytes.release(start..end);
    }

    /// Where a tensor's bytes are mapped; `None` where they are not those of a file.
    ///
    /// # Panics
    /// With an id of another checkpoint.
    pub fn mapped(&self, id: TensorId) -> Option<Mapped> {
        let info = self.info(id);
        self.files[info.file].bytes.mapped(info.range.clone())
    }

    /// Path (or name, in memory) and bytes of each file; of a random model its name and all of it.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        let whole = self.is_made().then(|| (self.listing.as_str(), self.total_bytes()));
        let files = self.files.iter().filter(move |_| whole.is_none());
        whole.into_iter().chain(files.map(|file| (file.label.as_str(), file.bytes.len() as u64)))
    }

    fn is_made(&self) -> bool {
        self.files.first().is_some_and(|file| matches!(file.bytes, FileBytes::Made(..)))
    }

    /// The tensors of a random model, under their ids; each is made when it is first asked for.
    pub(crate) fn made(name: &str, synth: &Synth) -> Checkpoint {
        let ids = (0..synth.tensors().len()).map(|i| TensorId(i as u32));
        let by_id = ids.filter_map(|id| synth.tensor(id));
        let (tensors, files) = by_id
            .enumerate()
            .map(|(file, tensor)| {
                let info = TensorInfo {
                    name: tensor.name.clone(),
                    element: tensor.element,
                    shape: tensor.shape.iter().map(|n| *n as usize).collect(),
                    file,
                    range: 0..tensor.bytes() as usize,
                };
                let bytes = FileBytes::Made(Box::new(tensor.clone()), OnceLock::new());
                (info, CheckpointFile { label: tensor.name.clone(), bytes })
            })
            .unzip();
        Checkpoint { files, tensors, listing: name.to_owned(), unclaimed: None }
    }

    /// A vector as f32.
    ///
    /// # Panics
    /// With a tensor of another checkpoint.
    pub fn plain_f32(&self, plain: &PlainTensor) -> Vec<f32> {
        let bytes = self.bytes(plain.tensor);
        if plain.is_f32 {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        } else {
            bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
                .collect()
        }
    }
}
