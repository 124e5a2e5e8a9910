//! The folder that a model is written into: one run has it at a time, and what a killed run left in it is taken away.

use std::ffi::OsString;
use std::fs::{self, DirEntry, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::checkpoint::{INDEX_FILE, SINGLE_FILE};

/// Locked while a run has the folder. It is empty, and goes with the run; that of a killed run is not locked.
const LOCK: &str = ".lily-synth.lock";

/// What unfinished files have behind their names.
pub(super) const UNFINISHED: &str = ".lily-partial";

/// What makes a folder a model. It goes first and comes last.
const CONFIG: &str = "config.json";

/// Files of a model beside its weights, also of those that others wrote: left beside a new model they would be taken for
/// its own.
pub(crate) const DOCUMENTS: [&str; 11] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    crate::pack::MANIFEST,
];

/// How often a folder is tried that others remove as often.
const TRIES: usize = 100;

/// Why a folder cannot be written into. Messages begin with the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// It is something else, or stands below something else.
    #[error("{} is not a folder; wanted a new or an empty one", .0.display())]
    NotAFolder(PathBuf),
    /// It is a symbolic link, or stands below one, whose target is not there.
    #[error("{} is a link to nothing; wanted a new or an empty folder", .0.display())]
    DanglingLink(PathBuf),
    /// It holds what is not to be replaced.
    #[error("{} is not empty, it holds {}; wanted a new or an empty folder", .folder.display(), .holds.display())]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
        /// The name of a file in it.
        holds: OsString,
    },
    /// A folder, a pipe or a device stands where a file of the model is to be replaced or removed.
    #[error("{} is not a file, and a file of this name is to be replaced; move it away", .0.display())]
    NotAFile(PathBuf),
    /// Another run has it.
    #[error("{} is being written by another lily; wait for its end, or name another folder", .0.display())]
    Busy(PathBuf),
    /// What the system says, with the path in question.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A folder to write a model into, which no other run has until this is dropped. Folders that were made for it are
/// removed then, unless a model was written.
#[derive(Debug)]
pub struct SynthFolder {
    path: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
    // Behind the lock: removed after it.
    created: Created,
}

impl SynthFolder {
    /// Takes the folder, which is made if it is not there, and removes what a killed run has left in it. One that holds
    /// anything else is taken only to `replace` the model in it.
    ///
    /// # Errors
    /// If the folder cannot be written into. It is as it was then.
    pub fn claim(path: &Path, replace: bool) -> Result<SynthFolder, FolderError> {
        // A folder that is refused for what it holds is not touched.
        if path.is_dir() && !replace {
            check_holds(path)?;
        }
        let folder = SynthFolder::lock(path)?;
        if !replace {
            check_holds(path)?;
        }
        folder.check_files()?;
        folder.remove_leftovers()?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(path: &Path) -> Result<SynthFolder, FolderError> {
        let mut created = Created(Vec::new());
        let name = path.join(LOCK);
        let mut missing = None;
        for _ in 0..TRIES {
            created.make(path)?;
            let lock = match OpenOptions::new().write(true).create(true).truncate(false).open(&name) {
                Ok(lock) => lock,
                // A run that made this folder was cancelled meanwhile; or it is one that takes no files, as /proc.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    missing = Some(named(&name, &error));
                    continue;
                }
                Err(error) => return Err(named(&name, &error).into()),
            };
            match lock.try_lock() {
                Ok(()) => (),
                Err(TryLockError::WouldBlock) => return Err(FolderError::Busy(path.to_owned())),
                // Some network disks know no locks. Their users are better served unwatched than not at all.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => (),
                Err(TryLockError::Error(error)) => return Err(named(&name, &error).into()),
            }
            if is_at(&lock, &name) {
                return Ok(SynthFolder { path: path.to_owned(), _lock: lock, created });
            }
        }
        Err(missing.map_or_else(|| FolderError::Busy(path.to_owned()), FolderError::Io))
    }

    /// What is to be replaced or removed must be files, or links.
    pub(super) fn check_files(&self) -> Result<(), FolderError> {
        for entry in entries(&self.path)? {
            let kind = entry.file_type().map_err(|error| named(&entry.path(), &error))?;
            let replaced = is(&entry.file_name(), is_unfinished) || is(&entry.file_name(), is_model_file);
            if replaced && !kind.is_file() && !kind.is_symlink() {
                return Err(FolderError::NotAFile(entry.path()));
            }
        }
        Ok(())
    }

    /// Takes away what killed runs have left. Unfinished files go last: they tell what the others are.
    fn remove_leftovers(&self) -> io::Result<()> {
        let names = names(&self.path)?;
        if is_half_named(&names) {
            self.remove_model()?;
        }
        self.remove(names.iter().filter(|name| is(name, is_unfinished)))
    }

    /// Takes the model away, `config.json` first.
    pub(super) fn remove_model(&self) -> io::Result<()> {
        let names = names(&self.path)?;
        let is_config = |name: &&OsString| name.as_os_str() == CONFIG;
        self.remove(names.iter().filter(is_config))?;
        self.remove(names.iter().filter(|name| !is_config(name) && is(name, is_model_file)))
    }

    fn remove<'a>(&self, names: impl Iterator<Item = &'a OsString>) -> io::Result<()> {
        names
            .map(|name| self.path.join(name))
            .try_for_each(|path| fs::remove_file(&path).map_err(|error| named(&path, &error)))
    }

    /// A model was written: the folder stays.
    pub(super) fn keep(&mut self) {
        self.created.0.clear();
    }
}

impl Drop for SynthFolder {
    fn drop(&mut self) {
        // Still locked: who has opened it before finds it gone once it is theirs, and makes another.
        let _ = fs::remove_file(self.path.join(LOCK));
    }
}

/// Folders that were made; removed when this is dropped, as far as they are empty.
#[derive(Debug)]
struct Created(Vec<PathBuf>);

impl Created {
    /// Makes a folder and what is missing above it.
    fn make(&mut self, path: &Path) -> Result<(), FolderError> {
        let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.is_dir()).collect();
        // Above a relative path.
        missing.retain(|folder| !folder.as_os_str().is_empty());
        for folder in missing.into_iter().rev() {
            match fs::create_dir(folder) {
                Ok(()) => self.0.push(folder.to_owned()),
                // Another run was faster.
                Err(_) if folder.is_dir() => (),
                Err(_) if is_dangling(folder) => return Err(FolderError::DanglingLink(folder.to_owned())),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    return Err(FolderError::NotAFolder(folder.to_owned()));
                }
                Err(error) => return Err(named(folder, &error).into()),
            }
        }
        Ok(())
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn is_dangling(path: &Path) -> bool {
    path.is_symlink() && path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether the name is still that of the open file.
#[cfg(unix)]
fn is_at(file: &File, name: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), name.metadata()), (Ok(open), Ok(there)) if id(&open) == id(&there))
}

/// Whether the name is still that of the open file: elsewhere a file that is open keeps its name.
#[cfg(not(unix))]
fn is_at(_: &File, name: &Path) -> bool {
    name.exists()
}

/// A folder that is not to be replaced may hold what a run of ours has left.
fn check_holds(folder: &Path) -> Result<(), FolderError> {
    let names = names(folder)?;
    let half_named = is_half_named(&names);
    let other = names.into_iter().find(|name| {
        let left =
            name.as_os_str() == LOCK || is(name, is_unfinished) || half_named && is(name, is_model_file);
        !left
    });
    other.map_or(Ok(()), |holds| Err(FolderError::NotEmpty { folder: folder.to_owned(), holds }))
}

/// Whether a run ended after it took the old model away and before the new one was complete: the files of a model that
/// are there are none.
fn is_half_named(names: &[OsString]) -> bool {
    names.iter().any(|name| is(name, is_unfinished)) && !names.iter().any(|name| name.as_os_str() == CONFIG)
}

fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect);
    entries.map_err(|error| named(folder, &error))
}

fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    Ok(entries(folder)?.into_iter().map(|entry| entry.file_name()).collect())
}

fn is(name: &std::ffi::OsStr, kind: fn(&str) -> bool) -> bool {
    name.to_str().is_some_and(kind)
}

fn is_unfinished(name: &str) -> bool {
    name.ends_with(UNFINISHED)
}

/// Whether a file of this name belongs to a model: its documents, its weights or their index.
fn is_model_file(name: &str) -> bool {
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    DOCUMENTS.contains(&name)
        || name == SINGLE_FILE
        || name == INDEX_FILE
        || shard.is_some_and(|part| part.contains("-of-"))
}

/// The error with the path in its message.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
