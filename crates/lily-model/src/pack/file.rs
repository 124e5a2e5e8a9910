//! The files of a packed checkpoint, made while they are written.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::{MANIFEST, Manifest, PADDING, PAGE, PIECE, hex};
use crate::checkpoint::{SINGLE_FILE, is_skipped, write};
use crate::synth::{DOCUMENTS, Streamed, SynthFiles};
use crate::{ElementType, Model, TensorId};

/// Bytes that are copied at a time.
const COPIED: usize = 1 << 20;

/// A tensor of the file, in its order.
#[derive(Debug)]
struct Part {
    /// What it is in the checkpoint; `None` for one that fills a page.
    tensor: Option<TensorId>,
    name: String,
    element: ElementType,
    shape: Vec<u64>,
    bytes: usize,
}

/// The files of a model beside its weights, which its packed form has as well; `config.json` first.
///
/// # Errors
/// What the system says of one that is there, with its path.
pub fn documents(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let there = DOCUMENTS.into_iter().filter(|name| *name != MANIFEST && folder.join(name).is_file());
    let read = |name: &str| {
        let path = folder.join(name);
        let bytes = std::fs::read(&path);
        bytes.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    there.map(|name| Ok((name.to_owned(), read(name)?))).collect()
}

/// The packed form of a model that is called `name`, with documents of its own (`config.json` first). Parts that no device reads (a vision
/// tower, a draft head) are left out.
pub fn files<'a>(model: &'a Model, name: &str, documents: Vec<(String, Vec<u8>)>) -> SynthFiles<'a> {
    let parts = parts(model);
    let described = parts.iter().map(|part| (part.name.as_str(), part.element, part.shape.as_slice()));
    let start =
        write::before_data(write::header(described), |json| (8 + json).next_multiple_of(PAGE) - (8 + json));
    let bytes = (start.len() + parts.iter().map(|part| part.bytes).sum::<usize>()) as u64;
    let source = model.checkpoint.files().map(|(file, bytes)| {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        super::SourceFile { name: name.to_owned(), bytes }
    });
    let manifest = Manifest::new(name, source.collect(), bytes, hex(&Sha256::digest(&start)));
    let pieces = Arc::new(Mutex::new(Vec::new()));
    let weights = Packed { model, start, parts, bytes, pieces: pieces.clone() };
    SynthFiles {
        documents,
        // The manifest is written behind the weights: it has their checksums.
        streamed: vec![
            (SINGLE_FILE.to_owned(), Box::new(weights)),
            (MANIFEST.to_owned(), Box::new(Sums { manifest, pieces })),
        ],
        shards: Vec::new(),
    }
}

/// Tensors in the order of the checkpoint, those of a packing behind the first of them, and what fills pages.
fn parts(model: &Model) -> Vec<Part> {
    let (_, packing) = model.weights.packed();
    let mut runs: Vec<Vec<TensorId>> = packing.tensors().map(|(_, parts)| parts.to_vec()).collect();
    let packed: Vec<TensorId> = runs.concat();
    let single =
        |(id, info): &(TensorId, &crate::TensorInfo)| !is_skipped(&info.name) && !packed.contains(id);
    runs.extend(model.checkpoint.tensors().filter(single).map(|(id, _)| vec![id]));
    runs.sort();
    let mut parts = Vec::new();
    for run in runs {
        let mut length = 0;
        for tensor in run {
            let info = model.checkpoint.info(tensor);
            length += info.range.len();
            parts.push(Part {
                tensor: Some(tensor),
                name: info.name.clone(),
                element: info.element,
                shape: info.shape.iter().map(|n| *n as u64).collect(),
                bytes: info.range.len(),
            });
        }
        let bytes = length.next_multiple_of(PAGE) - length;
        if bytes > 0 {
            let name = format!("{PADDING}{}", parts.len());
            let shape = vec![bytes as u64];
            parts.push(Part { tensor: None, name, element: ElementType::U8, shape, bytes });
        }
    }
    parts
}

/// `model.safetensors`.
#[derive(Debug)]
struct Packed<'a> {
    model: &'a Model,
    start: Vec<u8>,
    parts: Vec<Part>,
    bytes: u64,
    /// Checksums of what was written.
    pieces: Arc<Mutex<Vec<String>>>,
}

impl Streamed for Packed<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut out = Summed::new(out);
        out.write_all(&self.start)?;
        let mut buffer = vec![0; COPIED];
        for part in &self.parts {
            for from in (0..part.bytes).step_by(COPIED) {
                let piece = &mut buffer[..COPIED.min(part.bytes - from)];
                match part.tensor {
                    Some(tensor) => {
                        self.model.checkpoint.read(tensor, from, piece);
                        self.model.checkpoint.release(tensor, from..from + piece.len());
                    }
                    None => piece.fill(0),
                }
                out.write_all(piece)?;
            }
        }
        *self.pieces.lock().unwrap_or_else(PoisonError::into_inner) = out.finish();
        Ok(())
    }
}

/// Writes, and sums up each [`PIECE`].
pub(super) struct Summed<W> {
    out: W,
    sum: Sha256,
    left: u64,
    done: Vec<String>,
}

impl<W: Write> Summed<W> {
    pub(super) fn new(out: W) -> Self {
        Summed { out, sum: Sha256::new(), left: PIECE, done: Vec::new() }
    }

    /// The checksums, that of a shorter piece at the end among them.
    pub(super) fn finish(mut self) -> Vec<String> {
        if self.left < PIECE {
            self.done.push(hex(&self.sum.finalize()));
        }
        self.done
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let written = self.out.write(&bytes[..most])?;
        self.sum.update(&bytes[..written]);
        self.left -= written as u64;
        if self.left == 0 {
            self.done.push(hex(&self.sum.finalize_reset()));
            self.left = PIECE;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// `lily-pack.json`.
#[derive(Debug)]
struct Sums {
    manifest: Manifest,
    pieces: Arc<Mutex<Vec<String>>>,
}

impl Streamed for Sums {
    fn bytes(&self) -> u64 {
        // All checksums are as long.
        let pieces = vec![hex(&[0; 32]); self.manifest.bytes.div_ceil(PIECE) as usize];
        self.manifest.with_pieces(pieces).len() as u64
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.write_all(&self.manifest.with_pieces(pieces))
    }
}
