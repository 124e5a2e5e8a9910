//! The header of a safetensors file: eight bytes of length, JSON, then data in which tensors lie one after the other at
//! any byte offset.
//!
//! Read here and not with the `safetensors` crate because its errors do not name the tensor, and because it keeps the
//! last of two equal names.

use std::{fmt, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::element::ElementType;
use crate::error::{ModelError, json_problem, quoted};

/// The format itself allows 100 MB; a conversion of this architecture has less than one, and what may be refused is read
/// first.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Many times more than an MLX conversion of this architecture has (the largest has some thousand).
const MAX_TENSORS: usize = 1 << 16;
const MAX_DIMENSIONS: usize = 8;

/// A tensor as a header describes it, checked to lie in its file and to have the size of its type and shape.
#[derive(Debug)]
pub(crate) struct HeaderEntry {
    pub(crate) name: String,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// In the file.
    pub(crate) range: Range<usize>,
}

/// A file's header.
pub(crate) struct Header {
    /// Its tensors, in order of their offsets.
    pub(crate) entries: Vec<HeaderEntry>,
    /// Bytes that no tensor claims, if any. Not an error by itself yet: where a tensor is missing, its name says more.
    pub(crate) unclaimed: Option<ModelError>,
}

/// Reads and checks the header of a whole file. Nothing is allocated beyond what the header's own text needs.
pub(crate) fn read(file: &str, bytes: &[u8]) -> Result<Header, ModelError> {
    let file_bytes = bytes.len() as u64;
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(ModelError::LfsPointer { file: file.to_owned() });
    }
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(ModelError::TooShort { file: file.to_owned(), found: file_bytes });
    };
    let length = u64::from_le_bytes(*length);
    let limit = (rest.len() as u64).min(MAX_HEADER_BYTES);
    if length > limit {
        return Err(ModelError::HeaderLength { file: file.to_owned(), found: length, limit, file_bytes });
    }
    // `length` is at most `rest.len()`, so it fits.
    let (json, data) = rest.split_at(length as usize);
    let json_error = |problem: String| ModelError::Json { file: file.to_owned(), problem };
    if json.first() != Some(&b'{') {
        return Err(json_error("the header does not start with {: not a safetensors file".to_owned()));
    }
    let RawHeader(raw) = match serde_json::from_slice(json) {
        Ok(header) => header,
        Err(error) if error.to_string().starts_with(TOO_MANY) => {
            return Err(ModelError::TooManyTensors { file: file.to_owned(), limit: MAX_TENSORS });
        }
        Err(error) => return Err(json_error(format!("header: {}", json_problem(&error)))),
    };
    let mut checked = raw
        .into_iter()
        .map(|tensor| tensor.check(file, data.len() as u64))
        .collect::<Result<Vec<_>, ModelError>>()?;
    checked.sort_by_key(|(start, end, _)| (*start, *end));
    let unclaimed = check_cover(file, &checked, data.len() as u64)?;
    let data_start = 8 + length as usize;
    let entries = checked.into_iter().map(|(start, end, mut entry)| {
        // Both ends are at most `data.len()`.
        entry.range = data_start + start as usize..data_start + end as usize;
        entry
    });
    Ok(Header { entries: entries.collect(), unclaimed })
}

/// Tensors, in order of their offsets, must cover the data without overlap and without holes; the first hole is returned.
fn check_cover(
    file: &str,
    sorted: &[(u64, u64, HeaderEntry)],
    data_bytes: u64,
) -> Result<Option<ModelError>, ModelError> {
    let hole = |start, end| ModelError::Unclaimed { file: file.to_owned(), start, end };
    let mut first = None;
    let mut at = 0;
    let mut before: Option<&HeaderEntry> = None;
    for (start, end, entry) in sorted {
        if *start < at {
            return Err(ModelError::Overlap {
                file: file.to_owned(),
                tensor: quoted(&entry.name),
                other: before.map_or_else(String::new, |other| quoted(&other.name)),
                found: *start,
                wanted: at,
            });
        }
        if *start > at {
            first = first.or_else(|| Some(hole(at, *start)));
        }
        at = *end;
        before = Some(entry);
    }
    if at != data_bytes {
        first = first.or_else(|| Some(hole(at, data_bytes)));
    }
    Ok(first)
}

/// A tensor as the JSON has it.
struct RawTensor {
    name: String,
    element: String,
    shape: Vec<u64>,
    offsets: [u64; 2],
}

impl RawTensor {
    /// The offsets in the data, and the entry with its range still to be filled in.
    fn check(self, file: &str, data_bytes: u64) -> Result<(u64, u64, HeaderEntry), ModelError> {
        let file = || file.to_owned();
        let tensor = || quoted(&self.name);
        let Some(element) = ElementType::from_name(&self.element) else {
            return Err(ModelError::UnknownType {
                file: file(),
                tensor: tensor(),
                found: quoted(&self.element),
            });
        };
        let (Some(wanted), Ok(shape)) = (
            element.bytes_of(&self.shape),
            self.shape.iter().map(|n| usize::try_from(*n)).collect::<Result<Vec<_>, _>>(),
        ) else {
            return Err(ModelError::ShapeOverflow { file: file(), tensor: tensor(), found: self.shape });
        };
        let [start, end] = self.offsets;
        if start > end || end > data_bytes {
            return Err(ModelError::OutOfFile { file: file(), tensor: tensor(), start, end, data_bytes });
        }
        if end - start != wanted {
            return Err(ModelError::TensorBytes {
                file: file(),
                tensor: tensor(),
                found: end - start,
                wanted,
            });
        }
        Ok((start, end, HeaderEntry { name: self.name, element, shape, range: 0..0 }))
    }
}

const TOO_MANY: &str = "too many tensors";

struct RawHeader(Vec<RawTensor>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if tensors.len() == MAX_TENSORS {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                    let RawBody { dtype, shape, data_offsets } = map
                        .next_value()
                        .map_err(|error| A::Error::custom(format!("tensor {}: {error}", quoted(&name))))?;
                    tensors.push(RawTensor { name, element: dtype, shape: shape.0, offsets: data_offsets });
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(Header)
    }
}

#[derive(Deserialize)]
struct RawBody {
    dtype: String,
    shape: Dimensions,
    data_offsets: [u64; 2],
}

/// At most [`MAX_DIMENSIONS`] numbers, so that a list of millions is not stored before it is refused.
struct Dimensions(Vec<u64>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a list of at most {MAX_DIMENSIONS} sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dimensions, A::Error> {
                let mut shape = Vec::new();
                while let Some(n) = list.next_element()? {
                    if shape.len() == MAX_DIMENSIONS {
                        return Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
                    }
                    shape.push(n);
                }
                Ok(Dimensions(shape))
            }
        }
        deserializer.deserialize_seq(List)
    }
}
