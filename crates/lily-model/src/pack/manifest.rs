//! `lily-pack.json`: what a packed checkpoint was made of, by what, and what its bytes should be.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{MANIFEST, PAGE, PIECE, hex};
use crate::checkpoint::{SINGLE_FILE, Source};
use crate::error::{ModelError, json_problem, quoted};

/// The form of packed checkpoints that this version writes and reads.
const FORMAT: u64 = 1;

/// The largest that is read: checksums of half a terabyte.
const LIMIT: u64 = 1 << 20;

/// A file that was packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its name, without the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// What stands in `lily-pack.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The form of the packed file; another one is not read.
    pub format: u64,
    /// The version of Lily that packed it.
    pub lily: String,
    /// What the model was called.
    pub source: String,
    /// Its files of weights.
    pub source_files: Vec<SourceFile>,
    /// Each tensor, and each run of tensors that a device puts one below the other, begins at a multiple of so many bytes.
    pub page: u64,
    /// The packed file.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of all that stands before its data.
    pub header_sha256: String,
    /// Bytes of the pieces that have checksums; the last is shorter.
    pub piece_bytes: u64,
    /// SHA-256 of each piece.
    pub pieces_sha256: Vec<String>,
}

impl Manifest {
    pub(super) fn new(source: &str, files: Vec<SourceFile>, bytes: u64, header_sha256: String) -> Self {
        Manifest {
            format: FORMAT,
            lily: env!("CARGO_PKG_VERSION").to_owned(),
            source: source.to_owned(),
            source_files: files,
            page: PAGE as u64,
            file: SINGLE_FILE.to_owned(),
            bytes,
            header_sha256,
            piece_bytes: PIECE,
            pieces_sha256: Vec::new(),
        }
    }

    /// The file's text with these checksums.
    pub(super) fn with_pieces(&self, pieces_sha256: Vec<String>) -> Vec<u8> {
        let whole = Manifest { pieces_sha256, ..self.clone() };
        // Numbers, words and lists of them have a text.
        let text = serde_json::to_string_pretty(&whole).unwrap_or_default();
        (text + "\n").into_bytes()
    }

    /// That of a folder, or `None` where it is not a packed one.
    ///
    /// # Errors
    /// Where it cannot be read, or is of another version.
    pub fn of_folder(folder: &Path) -> Result<Option<Manifest>, ModelError> {
        Manifest::read(&Source::Folder(folder))
    }

    pub(crate) fn read(source: &Source<'_>) -> Result<Option<Manifest>, ModelError> {
        if !source.mentions(MANIFEST) {
            return Ok(None);
        }
        let file = source.label(MANIFEST);
        let bytes = source.read(MANIFEST, LIMIT, "the packed model")?;
        let damaged = |error| ModelError::Json { file: file.clone(), problem: json_problem(&error) };
        // The version first: whatever another one has beside it is its own.
        let raw: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        let format = raw.get("format").cloned().unwrap_or(Value::Null);
        if format != FORMAT {
            return Err(ModelError::PackVersion { file, found: quoted(&format.to_string()), wanted: FORMAT });
        }
        let manifest: Manifest = serde_json::from_value(raw).map_err(damaged)?;
        let wanted = [
            ("file", manifest.file.as_str() == SINGLE_FILE, SINGLE_FILE.to_owned()),
            ("page", manifest.page == PAGE as u64, PAGE.to_string()),
            ("piece_bytes", manifest.piece_bytes == PIECE, PIECE.to_string()),
            (
                "pieces_sha256",
                manifest.pieces_sha256.len() as u64 == manifest.bytes.div_ceil(PIECE),
                format!("{} checksums, as bytes is {}", manifest.bytes.div_ceil(PIECE), manifest.bytes),
            ),
        ];
        match wanted.into_iter().find(|(_, is_right, _)| !is_right) {
            None => Ok(Some(manifest)),
            Some((field, _, wanted)) => Err(ModelError::PackField { file, field, wanted }),
        }
    }

    /// Whether the packed file is as long as it should be, and what stands before its data as it was: what can be known without reading
    /// all of it.
    pub(crate) fn check(&self, source: &Source<'_>) -> Result<(), ModelError> {
        let file = source.map(&self.file, MANIFEST)?;
        let bytes = file.as_slice();
        if bytes.len() as u64 != self.bytes {
            return Err(ModelError::PackBytes {
                file: source.label(&self.file),
                found: bytes.len() as u64,
                wanted: self.bytes,
                manifest: MANIFEST,
            });
        }
        let length = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
        let start = length.and_then(|length| usize::try_from(length).ok()?.checked_add(8));
        let start = start.and_then(|start| bytes.get(..start));
        match start {
            Some(start) if hex(&Sha256::digest(start)) == self.header_sha256 => Ok(()),
            _ => Err(ModelError::PackDamaged {
                file: source.label(&self.file),
                what: "its header".to_owned(),
                manifest: MANIFEST,
            }),
        }
    }
}
