//! Machine code on disk, so that a text is compiled once for a GPU.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// At the start of each file; what stands behind it is the key, a line, and the code.
const MAGIC: &str = "lily cubin 1";

/// What decides which machine code comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(String);

impl Key {
    /// Of a source with all its headers, the options and the compiler's version.
    pub(crate) fn new(
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        options: &[String],
        nvrtc: &str,
    ) -> Self {
        // Two sums with different starts: 128 bits of no secret.
        let sum = |start: u64| {
            let mut hasher = DefaultHasher::new();
            (start, source, headers).hash(&mut hasher);
            hasher.finish()
        };
        Key(format!("{name} {:016x}{:016x} nvrtc {nvrtc} {}", sum(1), sum(2), options.join(" ")))
    }

    fn file(&self, folder: &Path) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        let name = self.0.split(' ').next().unwrap_or("kernel");
        folder.join(format!("{name}-{:016x}.cubin", hasher.finish()))
    }
}

/// A folder of machine code, or none.
#[derive(Clone, Debug)]
pub(crate) struct Cubins(pub(crate) Option<PathBuf>);

impl Cubins {
    /// What was kept under this key. A file that is not whole counts as none.
    pub(crate) fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let file = fs::read(key.file(self.0.as_ref()?)).ok()?;
        let head = head(key, None);
        let rest = file.strip_prefix(head.as_bytes())?;
        let line = rest.iter().position(|b| *b == b'\n')?;
        let (length, code) = (std::str::from_utf8(&rest[..line]).ok()?, &rest[line + 1..]);
        (length.parse() == Ok(code.len())).then(|| code.to_vec())
    }

    /// Keeps machine code. That a disk takes nothing costs time the next time, and is no failure.
    pub(crate) fn store(&self, key: &Key, code: &[u8]) {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let Some(folder) = &self.0 else { return };
        let (number, process) = (NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
        let unfinished = folder.join(format!(".{process}-{number}.unfinished"));
        let write = || {
            fs::create_dir_all(folder)?;
            let mut file = fs::File::create(&unfinished)?;
            file.write_all(head(key, Some(code.len())).as_bytes())?;
            file.write_all(code)?;
            file.sync_all()?;
            // In one step: another process sees all of it or nothing.
            fs::rename(&unfinished, key.file(folder))
        };
        if write().is_err() {
            let _ = fs::remove_file(&unfinished);
        }
    }
}

fn head(key: &Key, length: Option<usize>) -> String {
    let length = length.map_or(String::new(), |n| format!("{n}\n"));
    format!("{MAGIC}\n{}\n{length}", key.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str, nvrtc: &str) -> Key {
        Key::new("norm", source, &[("h", "x")], &["-DA=1".to_owned()], nvrtc)
    }

    #[test]
    fn what_was_kept_comes_back_for_the_same_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = Cubins(Some(folder.path().join("below")));
        assert_eq!(cubins.load(&key("a", "13.0")), None);
        cubins.store(&key("a", "13.0"), b"code\n1");
        assert_eq!(cubins.load(&key("a", "13.0")).as_deref(), Some(&b"code\n1"[..]));
        assert_eq!(cubins.load(&key("b", "13.0")), None);
        assert_eq!(cubins.load(&key("a", "13.1")), None);
        let other = Key::new("norm", "a", &[("h", "y")], &["-DA=1".to_owned()], "13.0");
        assert_eq!(cubins.load(&other), None);
        assert_eq!(fs::read_dir(folder.path().join("below")).unwrap().count(), 1, "nothing unfinished stays");
    }

    #[test]
    fn a_file_that_is_not_whole_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cubins = Cubins(Some(folder.path().to_path_buf()));
        cubins.store(&key("a", "13.0"), b"machine code");
        let file = key("a", "13.0").file(folder.path());
        let whole = fs::read(&file).unwrap();
        for length in [0, 5, whole.len() - 1] {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(cubins.load(&key("a", "13.0")), None, "{length} bytes");
        }
        fs::write(&file, [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(cubins.load(&key("a", "13.0")), None);
        fs::write(&file, &whole).unwrap();
        assert_eq!(cubins.load(&key("a", "13.0")).as_deref(), Some(&b"machine code"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        Cubins(Some(file)).store(&key("a", "13.0"), b"code");
        Cubins(None).store(&key("a", "13.0"), b"code");
        assert_eq!(Cubins(None).load(&key("a", "13.0")), None);
    }
}
