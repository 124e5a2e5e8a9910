//! Everything that can be wrong with a model folder, one variant per kind so that tests can tell them apart.

use std::io;

/// Why a model cannot be used. Every variant names the file and the field or tensor, what was found and what was wanted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The argument is neither a folder nor `org/name[@revision]`.
    #[error(
        "{found}: no such folder, and not a Hugging Face name; pass a folder that holds config.json, or org/name[@revision]"
    )]
    UnknownModel {
        /// The argument.
        found: String,
    },
    /// The argument is a file.
    #[error("{found} is a file; pass the folder that holds config.json and the weights")]
    NotAFolder {
        /// The argument.
        found: String,
    },
    /// A Hugging Face name that the local cache does not hold, or not completely.
    #[error("{repository} is not in the Hugging Face cache: {missing} is missing; fetch it with: hf download {repository}{}",
        revision.as_ref().map(|r| format!(" --revision {r}")).unwrap_or_default())]
    NotInCache {
        /// `org/name`.
        repository: String,
        /// The revision, where one was asked for.
        revision: Option<String>,
        /// The path that should be there.
        missing: String,
    },
    /// A Hugging Face name was given and nothing says where the cache is.
    #[error("cannot look for {repository}: none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set")]
    NoCache {
        /// `org/name`.
        repository: String,
    },
    /// A file that the model needs is not there (or is not a regular file).
    #[error("{file} is missing or not a regular file; {needed_by} needs it")]
    MissingFile {
        /// The file.
        file: String,
        /// What asked for it.
        needed_by: String,
    },
    /// A model folder without weights.
    #[error("{file} is missing, and so is {index}: the folder holds no weights that can be read")]
    NoWeights {
        /// The single file.
        file: String,
        /// The index of shards.
        index: String,
    },
    /// A clone without its large files.
    #[error("{file} is a Git LFS pointer and not the file itself; fetch it with: git lfs pull")]
    LfsPointer {
        /// The file.
        file: String,
    },
    /// The system refused to read a file.
    #[error("cannot read {file}: {kind}")]
    Read {
        /// The file.
        file: String,
        /// The system's reason.
        kind: io::ErrorKind,
    },
    /// A JSON file far larger than any real one.
    #[error("{file} has {found} bytes; at most {limit} are read: this is not the file it should be")]
    FileTooLarge {
        /// The file.
        file: String,
        /// Its size.
        found: u64,
        /// The most that is read.
        limit: u64,
    },
    /// Not valid JSON, or JSON of another structure.
    #[error("{file}: {problem}")]
    Json {
        /// The file; a safetensors file stands for its header.
        file: String,
        /// What the parser says, with line and column.
        problem: String,
    },
    /// A field that must be there.
    #[error("{file}: {field} is missing; wanted {wanted}")]
    MissingField {
        /// The file.
        file: String,
        /// The field, as a path (`text_config.head_dim`).
        field: String,
        /// What it should hold.
        wanted: String,
    },
    /// A field with a value that cannot be right.
    #[error("{file}: {field} is {found}; wanted {wanted}")]
    Field {
        /// The file.
        file: String,
        /// The field, as a path.
        field: String,
        /// Its value.
        found: String,
        /// What it should be.
        wanted: String,
    },
    /// A sound model, but of a kind that is not supported.
    #[error("{file}: {field} = {found} is not supported; wanted {wanted}")]
    Unsupported {
        /// The file.
        file: String,
        /// The field that says so, as a path.
        field: String,
        /// Its value.
        found: String,
        /// What is supported.
        wanted: String,
    },
    /// A checkpoint in Hugging Face's own layout, or not quantized.
    #[error(
        "{file}: {found}: this is not an MLX affine-quantized checkpoint; take an MLX conversion (named like \
         mlx-community/...-4bit), or make one with: mlx_lm.convert --hf-path MODEL -q"
    )]
    NotMlx {
        /// The file.
        file: String,
        /// What gives it away.
        found: String,
    },
    /// A shard name that is not a plain file name.
    #[error("{file}: shard name {found} is not a plain file name")]
    ShardName {
        /// The index.
        file: String,
        /// The name.
        found: String,
    },
    /// A file too short to hold the header it declares, or a header longer than any real one.
    #[error(
        "{file}: the header is {found} bytes long, at most {limit} are possible in a file of {file_bytes} bytes"
    )]
    HeaderLength {
        /// The file.
        file: String,
        /// Declared length of the header.
        found: u64,
        /// The longest that could be valid.
        limit: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// A file without room for the eight bytes of a header length: empty or cut off.
    #[error("{file} has {found} bytes; a safetensors file has at least 10")]
    TooShort {
        /// The file.
        file: String,
        /// Its size.
        found: u64,
    },
    /// More tensors than any real checkpoint holds.
    #[error("{file} lists more than {limit} tensors")]
    TooManyTensors {
        /// The file.
        file: String,
        /// The most that are read.
        limit: usize,
    },
    /// An element type that safetensors does not define.
    #[error("{file}: tensor {tensor} has the unknown type {found}; wanted U32, BF16 or F32")]
    UnknownType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The type.
        found: String,
    },
    /// Sizes whose product is not a number of bytes.
    #[error(
        "{file}: tensor {tensor} has shape {found:?}, whose size does not fit 64 bits or is not whole bytes"
    )]
    ShapeOverflow {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<u64>,
    },
    /// Offsets that point past the end of the file (or backwards): usually a download that was cut off.
    #[error(
        "{file}: tensor {tensor} has data_offsets [{start}, {end}], the file holds {data_bytes} bytes of data; \
         the file is cut off or damaged"
    )]
    OutOfFile {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// First byte, counted from the end of the header.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes after the header.
        data_bytes: u64,
    },
    /// Offsets whose distance is not the size that type and shape give.
    #[error("{file}: tensor {tensor} has {found} bytes; its type and shape need {wanted}")]
    TensorBytes {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Bytes between its offsets.
        found: u64,
        /// Bytes that type and shape need.
        wanted: u64,
    },
    /// Two tensors share bytes.
    #[error("{file}: tensor {tensor} starts at {found}, inside tensor {other}; wanted {wanted} or later")]
    Overlap {
        /// The file.
        file: String,
        /// The later tensor.
        tensor: String,
        /// The earlier one.
        other: String,
        /// Where the later one starts.
        found: u64,
        /// Where the earlier one ends.
        wanted: u64,
    },
    /// Bytes that belong to no tensor; the format forbids them.
    #[error(
        "{file}: bytes {start} to {end} of the data belong to no tensor; the file is damaged or not safetensors"
    )]
    Unclaimed {
        /// The file.
        file: String,
        /// First unclaimed byte, counted from the end of the header.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// A tensor that is there twice.
    #[error("tensor {tensor} is there twice: in {file} and in {other}; one of them must go")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// Where it was found second.
        file: String,
        /// Where it was found first.
        other: String,
    },
    /// A tensor of a shard that the index does not list, or lists elsewhere.
    #[error("{file} holds tensor {tensor}; {index} says it is {wanted}")]
    NotInIndex {
        /// The shard.
        file: String,
        /// The tensor.
        tensor: String,
        /// The index.
        index: String,
        /// Where the index has it.
        wanted: String,
    },
    /// A tensor that must be there.
    #[error("{file}: tensor {tensor} is missing; wanted {wanted}")]
    MissingTensor {
        /// Where it should be: the file, or the index of a sharded checkpoint.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type and shape.
        wanted: String,
    },
    /// A tensor that this architecture with this config does not have.
    #[error(
        "{file}: tensor {tensor} does not belong to a model of this config ({more} more like it); wanted no tensor of \
         this name: config.json and checkpoint do not fit each other"
    )]
    UnexpectedTensor {
        /// The file.
        file: String,
        /// The first such tensor, by name.
        tensor: String,
        /// How many others there are.
        more: usize,
    },
    /// A tensor of another type.
    #[error("{file}: tensor {tensor} is {found}; wanted {wanted}")]
    TensorType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// The type it must have.
        wanted: String,
    },
    /// A tensor of another shape.
    #[error("{file}: tensor {tensor} has shape {found:?}; wanted {wanted:?} ({because})")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        wanted: Vec<usize>,
        /// Which fields of the config ask for it.
        because: String,
    },
    /// A matrix whose inputs are not whole groups.
    #[error("{file}: {tensor} has {found} inputs; wanted a multiple of its quantization group, {group}")]
    Group {
        /// The config.
        file: String,
        /// The matrix.
        tensor: String,
        /// Its inputs.
        found: usize,
        /// Its group size.
        group: usize,
    },
    /// A packed checkpoint of another version.
    #[error(
        "{file}: format is {found}; this version reads {wanted}: pack the model again with this `lily pack`"
    )]
    PackVersion {
        /// The manifest.
        file: String,
        /// Its version.
        found: String,
        /// The one that is read.
        wanted: u64,
    },
    /// A manifest that is not one of `lily pack`.
    #[error("{file}: {field} is not {wanted}: it is damaged; pack the model again")]
    PackField {
        /// The manifest.
        file: String,
        /// The field.
        field: &'static str,
        /// What it must be.
        wanted: String,
    },
    /// A packed file that is cut off, or another one.
    #[error(
        "{file} has {found} bytes; wanted {wanted}, as {manifest} says: it was not copied whole; copy it or pack the model again"
    )]
    PackBytes {
        /// The file.
        file: String,
        /// Its size.
        found: u64,
        /// The size that was written.
        wanted: u64,
        /// What says so.
        manifest: &'static str,
    },
    /// A packed file that is not what was written.
    #[error(
        "{file}: {what}: not what {manifest} has the checksum of; the file is damaged: copy it or pack the model again"
    )]
    PackDamaged {
        /// The file.
        file: String,
        /// Where.
        what: String,
        /// What says so.
        manifest: &'static str,
    },
}

/// A name or value as it may stand in a message: bounded, and without control characters, because it comes from a file.
pub(crate) fn quoted(text: &str) -> String {
    bounded(text, 160)
}

/// What a JSON parser says, which may quote the file and ends with line and column.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    bounded(&error.to_string(), 600)
}

fn bounded(text: &str, limit: usize) -> String {
    let mut out: String =
        text.chars().take(limit).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(limit).is_some() {
        out.push_str("...");
    }
    out
}
