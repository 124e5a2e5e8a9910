//! The bytes of a checkpoint file: mapped from disk, already in memory, or made when they are needed. The only unsafe code of this
//! crate.
#![allow(unsafe_code)]

use std::{
    borrow::Cow,
    fs::File,
    ops::Range,
    sync::{Arc, OnceLock},
};

use crate::synth::SynthTensor;

/// No system here has smaller pages.
const SMALLEST_PAGE: usize = 4096;

/// Bytes that stay where they are as long as the model lives.
#[derive(Debug)]
pub(crate) enum FileBytes {
    Mapped(Arc<memmap2::Mmap>),
    Memory(Cow<'static, [u8]>),
    /// A tensor of a random model.
    Made(Box<SynthTensor>, OnceLock<Vec<u8>>),
}

/// A part of a file that is mapped. It stays where it is as long as this lives, and nobody writes it.
#[derive(Clone, Debug)]
pub struct Mapped {
    map: Arc<memmap2::Mmap>,
    range: Range<usize>,
}

impl Mapped {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// Which bytes of the file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Bytes of the same file; `None` where it has no such.
    pub fn within_file(&self, range: Range<usize>) -> Option<Mapped> {
        (range.start <= range.end && range.end <= self.map.len())
            .then(|| Mapped { map: self.map.clone(), range })
    }

    /// Whether both are of one file.
    pub fn is_of_same_file(&self, other: &Mapped) -> bool {
        Arc::ptr_eq(&self.map, &other.map)
    }

    /// Has its pages in memory.
    pub fn touch(&self) {
        touch(&self.map, self.range.clone());
    }
}

/// Has a part of a file in memory, and its pages mapped.
fn touch(map: &memmap2::Mmap, range: Range<usize>) {
    #[cfg(target_os = "linux")]
    if map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()).is_ok() {
        return;
    }
    // systems without such advice, Linux before 5.14 among them
    for byte in map[range].iter().step_by(SMALLEST_PAGE) {
        std::hint::black_box(*byte);
    }
}

impl FileBytes {
    /// Maps a whole file, read-only.
    ///
    /// While the model lives, nobody may change the file. If it is overwritten, the model computes with the changed
    /// weights; if it is cut off, the next read of a lost page ends the process (SIGBUS on Unix, an in-page error on
    /// Windows). Replacing the file by renaming another over it, as downloads do, is harmless.
    pub(crate) fn map(file: &File) -> std::io::Result<FileBytes> {
        // SAFETY: the map is read-only and private to this process, and its bytes are only ever read as plain numbers,
        // for which every bit pattern is valid. What remains is another process changing the file meanwhile; the
        // compiler is told that the bytes do not change, so that a program that overwrites weights in place under a
        // running engine gets unspecified numbers. No mapping loader can exclude that; see the contract above.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        // What is read from disk from here on is held in huge pages where the file system can: one thread of a Zen 4 server
        // decodes 5 to 15% faster from them (docs/performance.md). Advice only: where it fails, nothing is lost.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(FileBytes::Mapped(Arc::new(map)))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::Memory(bytes) => bytes,
            FileBytes::Made(tensor, made) => made.get_or_init(|| tensor.all()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            FileBytes::Made(tensor, _) => tensor.bytes() as usize,
            _ => self.as_slice().len(),
        }
    }

    /// Copies some of the bytes, from `start` on. What is made stays unmade otherwise.
    ///
    /// # Panics
    /// With a range that is not inside.
    pub(crate) fn read(&self, start: usize, into: &mut [u8]) {
        match self {
            FileBytes::Made(tensor, made) if made.get().is_none() => {
                assert!(start + into.len() <= self.len(), "{}", tensor.name);
                tensor.fill(start as u64, into);
            }
            _ => into.copy_from_slice(&self.as_slice()[start..start + into.len()]),
        }
    }

    /// A part of the bytes, where they are mapped.
    pub(crate) fn mapped(&self, range: Range<usize>) -> Option<Mapped> {
        match self {
            FileBytes::Mapped(map) => Some(Mapped { map: map.clone(), range }),
            FileBytes::Memory(_) | FileBytes::Made(..) => None,
        }
    }

    /// Whether the bytes are those of a file on disk, or not made yet.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match self {
            FileBytes::Mapped(_) => true,
            FileBytes::Memory(_) => false,
            FileBytes::Made(_, made) => made.get().is_none(),
        }
    }

    /// Gives the pages of a part of the bytes back, where they are those of a file: who reads them again reads the file again.
    ///
    /// # Panics
    /// With a range that is not inside.
    pub(crate) fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        #[cfg(unix)]
        if let FileBytes::Mapped(map) = self {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is of a file and never written, so a page that was dropped comes back with the same bytes. Where the
            // advice fails, nothing is lost.
            let _ = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
        }
    }

    /// Has a part of the bytes in memory, and its pages mapped.
    ///
    /// # Panics
    /// With a range that is not inside.
    pub(crate) fn touch(&self, range: Range<usize>) {
        match self {
            FileBytes::Mapped(map) => touch(map, range),
            _ => {
                self.as_slice();
            }
        }
    }
}
