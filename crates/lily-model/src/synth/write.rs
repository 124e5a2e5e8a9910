//! Streaming a checkpoint to disk: threads make blocks of the files in any order, which is possible because every block
//! can be made alone. Files get their names when all are complete, and `config.json` gets its name last: a folder that
//! was left half written is no model.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::folder::{SynthFolder, UNFINISHED, named};
use super::{SynthFile, SynthFiles};

/// Bytes that a thread makes and writes at a time: large enough that a disk writes in sequence, small enough that
/// stopping is prompt.
const BLOCK: usize = 4 << 20;

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
        let streamed = self.streamed.iter().map(|(_, file)| file.bytes()).sum::<u64>();
        documents + streamed + self.shards.iter().map(SynthFile::bytes).sum::<u64>()
    }

    /// Writes the files into a folder, with `threads` threads. The model that was there before is removed once the new
    /// files are complete; files that belong to no model stay.
    ///
    /// # Errors
    /// What the system says, with the file in question. What had been written is removed.
    pub fn write(&self, mut folder: SynthFolder, threads: usize, progress: Progress) -> io::Result<Written> {
        let unfinished = Unfinished { folder: &folder, names: self.names().collect() };
        let ended = self.write_unfinished(&unfinished, threads, progress)?;
        if ended == Written::All {
            unfinished.finish()?;
        }
        drop(unfinished);
        if ended == Written::All {
            folder.keep();
        }
        Ok(ended)
    }

    /// `config.json` last.
    fn names(&self) -> impl Iterator<Item = &str> {
        let shards = self.shards.iter().map(|shard| shard.name.as_str());
        let streamed = self.streamed.iter().map(|(name, _)| name.as_str());
        shards.chain(streamed).chain(self.documents.iter().rev().map(|(name, _)| name.as_str()))
    }

    fn write_unfinished(&self, to: &Unfinished, threads: usize, progress: Progress) -> io::Result<Written> {
        for (name, bytes) in &self.documents {
            let path = to.path(name);
            fs::write(&path, bytes).map_err(|error| named(&path, &error))?;
            (progress.written)(bytes.len() as u64);
        }
        for (name, file) in &self.streamed {
            let path = to.path(name);
            let mut watched = File::create(&path)
                .map(|file| Watched { file, progress, stopped: false })
                .map_err(|error| named(&path, &error))?;
            let mut buffer = BufWriter::with_capacity(1 << 18, &mut watched);
            let made = file.write_to(&mut buffer).and_then(|()| buffer.flush());
            drop(buffer);
            if watched.stopped {
                return Ok(Written::Cancelled);
            }
            made.map_err(|error| named(&path, &error))?;
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

/// A file whose writer is asked to stop.
struct Watched<'a> {
    file: File,
    progress: Progress<'a>,
    stopped: bool,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stopped = self.stopped || (self.progress.cancelled)();
        if self.stopped {
            return Err(io::Error::other("cancelled"));
        }
        let written = self.file.write(bytes)?;
        (self.progress.written)(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Files under unfinished names; removed when this is dropped before they got their own.
struct Unfinished<'a> {
    folder: &'a SynthFolder,
    /// Their own names, in the order in which they get them.
    names: Vec<&'a str>,
}

impl Unfinished<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}{UNFINISHED}"))
    }

    /// Takes the old model away and gives the files their names.
    fn finish(&self) -> io::Result<()> {
        // Also of what came since the folder was claimed.
        self.folder.check_files().map_err(io::Error::other)?;
        self.folder.remove_model()?;
        for (done, name) in self.names.iter().enumerate() {
            let path = self.folder.path().join(name);
            if let Err(error) = fs::rename(self.path(name), &path) {
                for name in &self.names[..done] {
                    let _ = fs::remove_file(self.folder.path().join(name));
                }
                return Err(named(&path, &error));
            }
        }
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = fs::remove_file(self.path(name));
        }
    }
}
