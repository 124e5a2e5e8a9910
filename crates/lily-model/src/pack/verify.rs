//! Reading a packed checkpoint whole, to find damage that opening it does not.

use std::path::Path;

use super::file::Summed;
use super::{MANIFEST, Manifest, PIECE};
use crate::Model;
use crate::checkpoint::Source;
use crate::error::{ModelError, quoted};
use std::io::Write as _;

/// Compares all bytes of a packed folder with its checksums. `read` is told of bytes as they are read, and says whether to go on; `false`
/// is returned where it does not.
///
/// # Errors
/// The first piece that is not what it was, with the tensors in it; or that the folder is not a packed one.
pub fn verify(folder: &Path, read: &mut dyn FnMut(u64) -> bool) -> Result<bool, ModelError> {
    let source = Source::Folder(folder);
    let manifest = Manifest::read(&source)?.ok_or_else(|| source.missing(MANIFEST, "lily pack --check"))?;
    manifest.check(&source)?;
    let file = source.map(&manifest.file, MANIFEST)?;
    for (i, (piece, wanted)) in
        file.as_slice().chunks(PIECE as usize).zip(&manifest.pieces_sha256).enumerate()
    {
        let mut sum = Summed::new(std::io::sink());
        // Nothing that is written into a sink fails.
        let _ = sum.write_all(piece);
        if sum.finish().first() != Some(wanted) {
            let start = i * PIECE as usize;
            return Err(ModelError::PackDamaged {
                file: source.label(&manifest.file),
                what: what_is_in(folder, start, start + piece.len()),
                manifest: MANIFEST,
            });
        }
        file.release(i * PIECE as usize..i * PIECE as usize + piece.len());
        if !read(piece.len() as u64) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn what_is_in(folder: &Path, start: usize, end: usize) -> String {
    let bytes = format!("bytes {start} to {end}");
    let Ok(model) = Model::open(folder) else { return bytes };
    let inside = |info: &&crate::TensorInfo| {
        info.range.start < end && start < info.range.end && !crate::checkpoint::is_skipped(&info.name)
    };
    let names: Vec<&str> = model
        .checkpoint
        .tensors()
        .map(|(_, info)| info)
        .filter(inside)
        .map(|info| info.name.as_str())
        .collect();
    match &names[..] {
        [] => bytes,
        [first] => format!("{bytes}, in tensor {}", quoted(first)),
        [first, .., last] => {
            format!("{bytes}, in tensors {} to {} of {}", quoted(first), quoted(last), names.len())
        }
    }
}
