//! Reading weight files into memory before they are needed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Checkpoint;

/// Bytes that a thread reads at once: whole huge pages, and often enough a sign of progress.
const PIECE: usize = 32 << 20;

/// Threads that read. A disk wants several requests at once, and mapping what is already in memory is work for a processor.
const READERS: usize = 4;

impl Checkpoint {
    /// Bytes that [`Checkpoint::warm`] reads or makes: those of all files on disk, or of a random model.
    pub fn mapped_bytes(&self) -> u64 {
        let elsewhere = self.files.iter().filter(|file| file.bytes.is_elsewhere());
        elsewhere.map(|file| file.bytes.len() as u64).sum()
    }

    /// Reads the files from disk, as far as the system does not hold them already, and maps all their pages, so that no
    /// token waits for either: a process that first touches a page in a decode step waits a microsecond for it, and some
    /// hundred where it comes from disk. On Linux, pages are mapped in huge ones where the system holds such.
    ///
    /// `read` is called from several threads, with the bytes that are done.
    pub fn warm(&self, read: &(dyn Fn(u64) + Sync)) {
        let mut pieces = Vec::new();
        for file in self.files.iter().filter(|file| file.bytes.is_elsewhere()) {
            let len = file.bytes.len();
            pieces.extend((0..len).step_by(PIECE).map(|start| (file, start..len.min(start + PIECE))));
        }
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let work = || {
            while let Some((file, range)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                file.bytes.touch(range.clone());
                let len = range.len() as u64;
                read(done.fetch_add(len, Ordering::Relaxed) + len);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..READERS.min(pieces.len()) {
                scope.spawn(work);
            }
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use crate::Model;
    use crate::testing::{Spec, model_in_memory, write_checkpoint};

    #[test]
    fn every_byte_of_files_on_disk_is_read_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        write_checkpoint(folder.path(), &Spec::tiny()).unwrap();
        let model = Model::open(folder.path()).unwrap();
        let total: u64 = model.checkpoint.files().map(|(_, bytes)| bytes).sum();
        assert_eq!(model.checkpoint.mapped_bytes(), total);
        let seen = Mutex::new(Vec::new());
        model.checkpoint.warm(&|done| seen.lock().unwrap().push(done));
        assert_eq!(seen.into_inner().unwrap().into_iter().max(), Some(total));
    }

    #[test]
    fn what_is_in_memory_is_left_alone() {
        let model = model_in_memory(&Spec::tiny());
        assert_eq!(model.checkpoint.mapped_bytes(), 0);
        model.checkpoint.warm(&|_| panic!("nothing is to be read"));
    }
}
