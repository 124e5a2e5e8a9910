//! Writing what the readers of this module read: headers of safetensors files and the index over shards.

use serde_json::{Map, Value, json};

use super::{ElementType, SINGLE_FILE};

/// The header of a file that holds these tensors (name, type, shape) one after the other.
pub(crate) fn header<'a>(
    tensors: impl Iterator<Item = (&'a str, ElementType, &'a [u64])>,
) -> Map<String, Value> {
    let mut at = 0;
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({ "format": "mlx" }))]);
    for (name, element, shape) in tensors {
        let end = at + element.bytes_of(shape).unwrap_or_default();
        let entry = json!({ "dtype": element.name(), "shape": shape, "data_offsets": [at, end] });
        header.insert(name.to_owned(), entry);
        at = end;
    }
    header
}

/// What stands before the data: the header's length and the header, with `blanks` behind it.
pub(crate) fn before_data(header: Map<String, Value>, blanks: impl FnOnce(usize) -> usize) -> Vec<u8> {
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len() + blanks(json.len()), b' ');
    let mut start = (json.len() as u64).to_le_bytes().to_vec();
    start.append(&mut json);
    start
}

/// The name of a file of weights.
pub(crate) fn file_name(shard: usize, count: usize) -> String {
    match count {
        1 => SINGLE_FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
    }
}

/// The index over shards: the file of each tensor (its name, its shard), and the bytes of all.
pub(crate) fn index<'a>(tensors: impl Iterator<Item = (&'a str, usize)>, count: usize, bytes: u64) -> Value {
    let weight_map: Map<String, Value> =
        tensors.map(|(name, shard)| (name.to_owned(), file_name(shard, count).into())).collect();
    json!({ "metadata": { "total_size": bytes }, "weight_map": weight_map })
}
