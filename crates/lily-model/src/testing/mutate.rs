//! Random changes of files.

use serde_json::{Value, json};

use super::Random;

/// A number below the limit.
pub fn below(random: &mut Random, limit: usize) -> usize {
    (random.bits() % limit.max(1) as u64) as usize
}

/// One to three random changes of a file's bytes.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + below(random, 3) {
        let at = below(random, bytes.len() + 1);
        match below(random, 6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.bits() as u8),
            2 => drop(bytes.drain(at..(at + below(random, 16)).min(bytes.len()))),
            3 => drop(bytes.splice(at..at, b"99999999999999999999".iter().copied())),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (random.bits() % 8);
                }
            }
        }
    }
}

/// Replaces the value at a random place of a JSON document by an unlikely one.
pub fn mutate_json(random: &mut Random, value: &mut Value) {
    let deeper = !random.bits().is_multiple_of(8);
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let i = below(random, map.len());
            if let Some(inner) = map.values_mut().nth(i) {
                mutate_json(random, inner);
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let i = below(random, list.len());
            mutate_json(random, &mut list[i]);
        }
        _ => {
            let unlikely = [
                json!(null),
                json!(0),
                json!(1),
                json!(-1),
                json!(63),
                json!(64),
                json!(0.5),
                json!(1e308),
                json!(u64::MAX),
                json!(i64::MIN),
                json!(1u64 << 32),
                json!(1u64 << 62),
                json!("U8"),
                json!(""),
                json!([]),
                json!([0, 0]),
                json!([u64::MAX, u64::MAX]),
                json!({}),
                json!(true),
            ];
            *value = unlikely[below(random, unlikely.len())].clone();
        }
    }
}
