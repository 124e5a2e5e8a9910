//! Streaming a checkpoint to disk: threads make blocks of the files in any order, which is possible because every block
//! can be made alone. Files get their names when all are complete, and `config.json` gets its name last: a folder that
//! was left half written is no model.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{SynthFile, SynthFiles};
use crate::checkpoint::{INDEX_FILE, SINGLE_FILE};

/// Bytes that a thread makes and writes at a time: large enough that a disk writes in sequence, small enough that
/// stopping is prompt.
const BLOCK: usize = 4 << 20;

/// What unfinished files have behind their names.
const UNFINISHED: &str = ".lily-partial";

/// Who watches the writing. Called from several threads.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    /// So many bytes more were written.
    pub written: &'a (dyn Fn(u64) + Sync),
    /// Asked before each block: whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// How writing ended, where nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All files are there.
    All,
    /// It was cancelled; what had been written is gone again.
    Cancelled,
}

impl SynthFiles<'_> {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        let documents = self.documents.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        documents + self.shards.iter().map(SynthFile::bytes).sum::<u64>()
    }

    /// Whether a file of this name is what a run that was killed has left; the next one into its folder removes it.
    pub fn is_unfinished(name: &str) -> bool {
        name.ends_with(UNFINISHED)
    }

    /// Writes the files into a folder, with `threads` threads. Files of the same names, and weights of the model that
    /// was there before, are replaced once the new ones are complete; other files stay.
    ///
    /// # Errors
    /// What the system says, with the file in question. What had been written is removed.
    pub fn write(&self, folder: &Path, threads: usize, progress: Progress) -> io::Result<Written> {
        let created = !folder.exists();
        fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
        remove_unfinished(folder)?;
        let unfinished = Unfinished { folder, names: self.names().collect(), created };
        let ended = self.write_unfinished(&unfinished, threads, progress)?;
        if ended == Written::All {
            unfinished.finish()?;
        }
        Ok(ended)
    }

    /// `config.json` last.
    fn names(&self) -> impl Iterator<Item = &str> {
        let documents = self.documents.iter().rev().map(|(name, _)| name.as_str());
        self.shards.iter().map(|shard| shard.name.as_str()).chain(documents)
    }

    fn write_unfinished(&self, to: &Unfinished, threads: usize, progress: Progress) -> io::Result<Written> {
        for (name, bytes) in &self.documents {
            let path = to.path(name);
            fs::write(&path, bytes).map_err(|error| named(&path, &error))?;
            (progress.written)(bytes.len() as u64);
        }
        for shard in &self.shards {
            let path = to.path(&shard.name);
            let made = File::create(&path).and_then(|file| file.set_len(shard.bytes()));
            made.map_err(|error| named(&path, &error))?;
        }
        let blocks: Vec<(&SynthFile, u64)> = self
            .shards
            .iter()
            .flat_map(|shard| (0..shard.bytes()).step_by(BLOCK).map(move |offset| (shard, offset)))
            .collect();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            let done = write_blocks(&blocks, &next, &stop, to, progress);
            stop.fetch_or(done.is_err(), Ordering::Relaxed);
            done
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            let ended = started.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All of them are waited for before the first failure is looked at.
            ended.collect::<Vec<_>>().into_iter().collect::<io::Result<()>>()
        })?;
        Ok(if stop.into_inner() { Written::Cancelled } else { Written::All })
    }
}

/// Takes blocks until there are none left.
fn write_blocks(
    blocks: &[(&SynthFile, u64)],
    next: &AtomicUsize,
    stop: &AtomicBool,
    to: &Unfinished,
    progress: Progress,
) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK];
    let mut open: Option<(&str, File)> = None;
    while !stop.load(Ordering::Relaxed) {
        if (progress.cancelled)() {
            stop.store(true, Ordering::Relaxed);
            break;
        }
        let Some((shard, offset)) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        let len = (shard.bytes() - offset).min(BLOCK as u64) as usize;
        shard.fill(*offset, &mut buffer[..len]);
        let path = to.path(&shard.name);
        let named = |error: io::Error| named(&path, &error);
        // Each thread has a place of its own in the file.
        let file = match &mut open {
            Some((name, file)) if *name == shard.name => file,
            other => {
                let file = OpenOptions::new().write(true).open(&path).map_err(named)?;
                &mut other.insert((&shard.name, file)).1
            }
        };
        file.seek(SeekFrom::Start(*offset)).and_then(|_| file.write_all(&buffer[..len])).map_err(named)?;
        (progress.written)(len as u64);
    }
    Ok(())
}

/// Takes away what runs that were killed have left.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder).map_err(|error| named(folder, &error))? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(SynthFiles::is_unfinished) {
            fs::remove_file(entry.path()).map_err(|error| named(&entry.path(), &error))?;
        }
    }
    Ok(())
}

/// The error with the path in its message.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Files under unfinished names; removed when this is dropped before they got their own.
struct Unfinished<'a> {
    folder: &'a Path,
    /// Their own names, in the order in which they get them.
    names: Vec<&'a str>,
    /// The folder was not there before.
    created: bool,
}

impl Unfinished<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}{UNFINISHED}"))
    }

    /// Takes the old model away and gives the files their names.
    fn finish(&self) -> io::Result<()> {
        let _ = fs::remove_file(self.folder.join("config.json"));
        for entry in fs::read_dir(self.folder).map_err(|error| named(self.folder, &error))? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_weights) {
                fs::remove_file(entry.path()).map_err(|error| named(&entry.path(), &error))?;
            }
        }
        for name in &self.names {
            let path = self.folder.join(name);
            fs::rename(self.path(name), &path).map_err(|error| named(&path, &error))?;
        }
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = fs::remove_file(self.path(name));
        }
        if self.created {
            // Only if it is empty.
            let _ = fs::remove_dir(self.folder);
        }
    }
}

/// Whether a file of this name is a checkpoint's weights or their index.
fn is_weights(name: &str) -> bool {
    let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
    name == SINGLE_FILE || name == INDEX_FILE || shard.is_some_and(|part| part.contains("-of-"))
}
