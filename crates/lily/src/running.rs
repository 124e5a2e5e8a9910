//! Which servers run: each writes a file into the runtime folder of its user, and holds a lock on it for as long as it lives.
//!
//! The system lets go of the lock of a program that died, however it died: a file that nobody holds is a dead server's, and
//! whoever comes across it removes it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// No entry of ours is longer.
const LONGEST_ENTRY: u64 = 64 << 10;

/// What is told of a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    /// Its process.
    pub(crate) pid: u32,
    /// Where it listens.
    pub(crate) url: String,
    /// What it serves.
    pub(crate) model: String,
    /// What it computes on.
    pub(crate) device: String,
    /// Tokens of context.
    pub(crate) context: usize,
    /// Unix seconds.
    pub(crate) started: u64,
}

/// Holds a server's entry; dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    _lock: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The folder: `lily` in `XDG_RUNTIME_DIR`, else `lily/run` in `XDG_CACHE_HOME`, else `.cache/lily/run` at home.
pub(crate) fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = || absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    absolute("XDG_RUNTIME_DIR")
        .map(|folder| folder.join("lily"))
        .or_else(|| Some(cache()?.join("lily").join("run")))
}

/// Enters a server.
pub(crate) fn enter(folder: &Path, entry: &Entry) -> io::Result<Held> {
    std::fs::create_dir_all(folder)?;
    // Containers that share a folder have the same process numbers.
    let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let path = folder.join(format!("{}-{moment}.json", entry.pid));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path)?;
    // Whoever reads it before the lock sees an empty file that nobody holds, and waits for the next time.
    file.try_lock()?;
    file.write_all(&serde_json::to_vec(entry)?)?;
    Ok(Held { path, _lock: file })
}

/// The servers that run, the oldest first. Files of dead ones are removed; what is no entry is left alone.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<Entry>> {
    let files = match std::fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let mut entries: Vec<Entry> = paths.filter_map(|path| look(&path).ok()?).collect();
    entries.sort_by_key(|entry| (entry.started, entry.pid));
    Ok(entries)
}

/// The entry of a live server; removes that of a dead one.
fn look(path: &Path) -> io::Result<Option<Entry>> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let mut text = String::new();
    Read::by_ref(&mut file).take(LONGEST_ENTRY).read_to_string(&mut text)?;
    let Ok(entry) = serde_json::from_str(&text) else { return Ok(None) };
    match file.try_lock_shared() {
        Ok(()) => {
            std::fs::remove_file(path)?;
            Ok(None)
        }
        Err(_) => Ok(Some(entry)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, started: u64) -> Entry {
        let (url, model, device) = ("http://127.0.0.1:1".into(), "m".into(), "CPU".into());
        Entry { pid, url, model, device, context: 10, started }
    }

    #[test]
    fn the_living_are_listed_and_the_dead_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(list(&folder.path().join("nowhere")).unwrap(), []);
        let below = folder.path().join("a/b");
        let later = enter(&below, &entry(7, 20)).unwrap();
        let earlier = enter(&below, &entry(8, 10)).unwrap();
        assert_eq!(list(&below).unwrap(), [entry(8, 10), entry(7, 20)]);
        // one that ended without a word: its file is there and its lock is not
        let Held { path, _lock } = &earlier;
        _lock.unlock().unwrap();
        assert_eq!(list(&below).unwrap(), [entry(7, 20)]);
        assert!(!path.exists());
        std::fs::write(below.join("other.json"), "not ours").unwrap();
        std::fs::write(below.join("note.txt"), "not ours").unwrap();
        assert_eq!(list(&below).unwrap(), [entry(7, 20)]);
        drop(later);
        assert_eq!(list(&below).unwrap(), []);
        assert_eq!(std::fs::read_dir(&below).unwrap().count(), 2, "what is not ours stays");
    }

    #[test]
    fn the_folder_is_the_runtime_folder_or_below_the_cache() {
        let of = |known: &'static [(&str, &str)]| {
            folder(|name| known.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert_eq!(
            of(&[("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "/h")]),
            Some("/run/user/7/lily".into())
        );
        assert_eq!(of(&[("XDG_RUNTIME_DIR", ""), ("HOME", "/h")]), Some("/h/.cache/lily/run".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]), Some("/c/lily/run".into()));
        assert_eq!(of(&[]), None);
    }
}
