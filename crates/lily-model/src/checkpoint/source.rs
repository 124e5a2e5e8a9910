//! Where the files of a model come from: a folder, or memory (the model inside the binary, tests).

use std::{
    borrow::Cow,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use super::mapping::FileBytes;
use crate::error::ModelError;

/// The files of a model that is already in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryModel {
    /// Contents of `config.json`.
    pub config_json: Cow<'static, [u8]>,
    /// Contents of `generation_config.json`.
    pub generation_config_json: Option<Cow<'static, [u8]>>,
    /// The other files by name: `model.safetensors`, or the shards and `model.safetensors.index.json`.
    pub files: Vec<(Cow<'static, str>, Cow<'static, [u8]>)>,
}

pub(crate) enum Source<'a> {
    Folder(&'a Path),
    Memory(MemoryModel),
}

impl Source<'_> {
    /// How messages name a file.
    pub(crate) fn label(&self, name: &str) -> String {
        match self {
            Source::Folder(folder) => folder.join(name).display().to_string(),
            Source::Memory(_) => name.to_owned(),
        }
    }

    /// Whether a regular file of this name is there, behind links or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Source::Folder(folder) => folder.join(name).is_file(),
            Source::Memory(model) => match name {
                "config.json" => true,
                "generation_config.json" => model.generation_config_json.is_some(),
                _ => model.files.iter().any(|(known, _)| known == name),
            },
        }
    }

    /// Whether something of this name is meant to be there: a folder, a pipe and a link to nothing count. An optional
    /// file is read where this holds, so that a broken one is an error and not an absent one.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        match self {
            Source::Folder(folder) => folder.join(name).symlink_metadata().is_ok(),
            Source::Memory(_) => self.has(name),
        }
    }

    /// A small file as a whole; more than `limit` bytes are refused before they are read.
    pub(crate) fn read(
        &self,
        name: &str,
        limit: u64,
        needed_by: &str,
    ) -> Result<Cow<'static, [u8]>, ModelError> {
        let too_large = |found| ModelError::FileTooLarge { file: self.label(name), found, limit };
        let bytes = match self {
            Source::Folder(folder) => {
                let path = folder.join(name);
                let file = self.open_regular(&path, name, needed_by)?;
                let mut bytes = Vec::new();
                // One byte more than allowed, in case the file grows meanwhile.
                file.take(limit + 1)
                    .read_to_end(&mut bytes)
                    .map_err(|error| self.unreadable(name, &error))?;
                if bytes.len() as u64 > limit {
                    return Err(too_large(path.metadata().map_or(bytes.len() as u64, |m| m.len())));
                }
                Cow::Owned(bytes)
            }
            Source::Memory(model) => match name {
                "config.json" => model.config_json.clone(),
                "generation_config.json" => model.generation_config_json.clone().unwrap_or_default(),
                _ => self.in_memory(model, name, needed_by)?,
            },
        };
        if bytes.len() as u64 > limit {
            return Err(too_large(bytes.len() as u64));
        }
        Ok(bytes)
    }

    /// A weight file, mapped.
    pub(crate) fn map(&self, name: &str, needed_by: &str) -> Result<FileBytes, ModelError> {
        match self {
            Source::Folder(folder) => {
                let file = self.open_regular(&folder.join(name), name, needed_by)?;
                FileBytes::map(&file).map_err(|error| self.unreadable(name, &error))
            }
            Source::Memory(model) => Ok(FileBytes::Memory(self.in_memory(model, name, needed_by)?)),
        }
    }

    fn in_memory(
        &self,
        model: &MemoryModel,
        name: &str,
        needed_by: &str,
    ) -> Result<Cow<'static, [u8]>, ModelError> {
        let found = model.files.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| bytes.clone()).ok_or_else(|| self.missing(name, needed_by))
    }

    /// Opens a file that is known to be a regular one (behind links, as in the Hugging Face cache): opening a pipe
    /// would wait for its writer.
    fn open_regular(&self, path: &PathBuf, name: &str, needed_by: &str) -> Result<File, ModelError> {
        if !path.is_file() {
            return Err(self.missing(name, needed_by));
        }
        File::open(path).map_err(|error| self.unreadable(name, &error))
    }

    pub(crate) fn missing(&self, name: &str, needed_by: &str) -> ModelError {
        ModelError::MissingFile { file: self.label(name), needed_by: needed_by.to_owned() }
    }

    fn unreadable(&self, name: &str, error: &std::io::Error) -> ModelError {
        ModelError::Read { file: self.label(name), kind: error.kind() }
    }
}
