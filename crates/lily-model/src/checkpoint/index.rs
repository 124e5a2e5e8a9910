//! `model.safetensors.index.json`: which shard holds which tensor.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use crate::error::{ModelError, json_problem, quoted};

/// Shards by name, and the shard of each tensor.
#[derive(Debug)]
pub(crate) struct Index {
    /// As messages name the index.
    pub(crate) file: String,
    /// File names, sorted, each once.
    pub(crate) shards: Vec<String>,
    /// Position in `shards` by tensor name.
    pub(crate) shard_of: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Index, ModelError> {
        let RawIndex { weight_map } = serde_json::from_slice(bytes)
            .map_err(|error| ModelError::Json { file: file.to_owned(), problem: json_problem(&error) })?;
        let mut shards: Vec<String> = weight_map.values().cloned().collect();
        shards.sort_unstable();
        shards.dedup();
        if let Some(bad) = shards.iter().find(|name| !is_plain_file_name(name)) {
            return Err(ModelError::ShardName { file: file.to_owned(), found: quoted(bad) });
        }
        if shards.is_empty() {
            return Err(ModelError::Json {
                file: file.to_owned(),
                problem: "weight_map lists no tensor".to_owned(),
            });
        }
        let shard_of = weight_map
            .into_iter()
            .filter_map(|(tensor, shard)| shards.binary_search(&shard).ok().map(|i| (tensor, i)))
            .collect();
        Ok(Index { file: file.to_owned(), shards, shard_of })
    }
}

/// A name that cannot lead out of the model's folder on any system.
fn is_plain_file_name(name: &str) -> bool {
    let path = Path::new(name);
    !name.contains(['/', '\\', ':', '\0'])
        && path.file_name().is_some_and(|last| last == path.as_os_str())
        && name.ends_with(".safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_stay_in_the_folder() {
        assert!(is_plain_file_name("model-00001-of-00002.safetensors"));
        for bad in [
            "",
            ".",
            "..",
            "../x.safetensors",
            "/x.safetensors",
            "a/x.safetensors",
            "a\\x.safetensors",
            "c:x.safetensors",
            "x\0.safetensors",
            "x.bin",
            "x.safetensors/",
        ] {
            assert!(!is_plain_file_name(bad), "{bad:?}");
        }
    }
}
