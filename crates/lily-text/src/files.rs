//! Reading a checkpoint's files. The folder is not trusted: it may hold pipes, devices, and files without end.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

use crate::error::TextError;

/// The largest file of a tokenizer that is read, in bytes. The largest vocabularies, written with blanks and lines, are below 40 MB.
pub const LARGEST_FILE: u64 = 256 << 20;

/// The whole of a regular file (behind links, as in the Hugging Face cache).
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TextError> {
    let found = path.metadata().map_err(|source| unreadable(path, source))?;
    read_found(path, &found)
}

/// The same; `None` where there is nothing of this name. A link to nothing is an error: the file was meant to be there.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match path.symlink_metadata() {
        Ok(_) => read(path).map(Some),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(unreadable(path, source)),
    }
}

fn read_found(path: &Path, found: &Metadata) -> Result<Vec<u8>, TextError> {
    // Before it is opened: opening a pipe would wait for its writer.
    if !found.is_file() {
        return Err(TextError::NotAFile { path: path.to_owned() });
    }
    let too_large = |found| TextError::TooLarge { path: path.to_owned(), found, limit: LARGEST_FILE };
    if found.len() > LARGEST_FILE {
        return Err(too_large(found.len()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or_default());
    // One byte more than allowed, in case the file grows meanwhile.
    let read = File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
    match read {
        Ok(count) if count as u64 > LARGEST_FILE => Err(too_large(count as u64)),
        Ok(_) => Ok(bytes),
        Err(source) => Err(unreadable(path, source)),
    }
}

fn unreadable(path: &Path, source: Error) -> TextError {
    TextError::Read { path: path.to_owned(), source }
}
