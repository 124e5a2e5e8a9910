//! Checkpoints changed at random: opening one never panics and never takes long, and one that opens can be used whole.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{open_quickly, tiny};
use crate::{
    ElementType, MemoryModel, Model, Preset,
    checkpoint::write::before_data,
    inspect::Inspection,
    synth::Synth,
    testing::{Draft, DraftTensor, Random, Spec, header, safetensors, write_hollow, write_sparse},
};

/// Opens, and reads everything that opened.
fn exercise(parts: MemoryModel) -> bool {
    let Ok(model) = open_quickly(parts) else { return false };
    let read: usize = model.checkpoint.tensors().map(|(id, _)| model.checkpoint.bytes(id).len()).sum();
    assert_eq!(read as u64, model.checkpoint.total_bytes());
    Inspection::of(&model, model.geometry.max_context);
    model.checkpoint.plain_f32(&model.weights.final_norm);
    true
}

fn below(random: &mut Random, limit: usize) -> usize {
    (random.bits() % limit.max(1) as u64) as usize
}

/// One to three random changes of a file's bytes.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
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

fn sharded() -> Draft {
    Draft::of(&Spec { shards: 2, wrapped: true, extras: true, ..Spec::tiny() })
}

#[test]
fn a_thousand_mutations_of_each_file() {
    let sound = sharded().encode();
    let mut random = Random::new(2026);
    let mut opened = 0;
    for round in 0..5000u32 {
        let mut parts = sound.clone();
        let file = match round % 5 {
            0 => &mut parts.config_json,
            1 => parts.generation_config_json.as_mut().unwrap(),
            2 => &mut parts.files[0].1,
            3 => &mut parts.files[1].1,
            _ => &mut parts.files[2].1,
        };
        let bytes = file.to_mut();
        match round % 5 {
            // Of a weight file, mostly the header: the data is only bytes.
            2 | 3 if !round.is_multiple_of(7) => {
                let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                let mut head = bytes[..end].to_vec();
                mutate(&mut random, &mut head);
                bytes.splice(..end, head);
            }
            _ => mutate(&mut random, bytes),
        }
        opened += usize::from(exercise(parts));
    }
    // Both outcomes are common, or the mutations do not test anything.
    assert!((250..4750).contains(&opened), "{opened} of 5000 opened");
}

/// Replaces the value at a random place of a JSON document by an unlikely one.
fn mutate_json(random: &mut Random, value: &mut Value) {
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

#[test]
fn a_thousand_unlikely_values_in_each_document() {
    let mut random = Random::new(7);
    let draft = sharded();
    let sound = draft.encode();
    let (index, head) = (draft.index(), header(&draft.shards[0]));
    for round in 0..4000 {
        let mut parts = sound.clone();
        let mut changed = |value: &Value| {
            let mut value = value.clone();
            mutate_json(&mut random, &mut value);
            value.to_string().into_bytes().into()
        };
        match round % 4 {
            0 => parts.config_json = changed(&draft.config),
            1 => parts.generation_config_json = Some(changed(&draft.generation_config)),
            2 => parts.files[2].1 = changed(&index),
            _ => {
                let mut head = head.clone();
                let i = below(&mut random, head.len());
                if let Some(entry) = head.values_mut().nth(i) {
                    mutate_json(&mut random, entry);
                }
                parts.files[0].1 = safetensors(head, &draft.shards[0], true).into();
            }
        }
        exercise(parts);
    }
}

#[test]
fn a_thousand_mutations_of_a_true_size_header() {
    let synth = Synth::new(Preset::named("qwen3.6-35b-a3b").unwrap(), 0).unwrap();
    let files = synth.files(&[1], u64::MAX);
    let file = &files.shards[0];
    let data = file.bytes() - file.start().len() as u64;
    let head: serde_json::Map<String, Value> = serde_json::from_slice(&file.start()[8..]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_hollow(folder.path(), &files).unwrap();
    Model::open(folder.path()).unwrap();
    let path = folder.path().join(&file.name);
    let (mut random, mut opened) = (Random::new(35), 0);
    for round in 0..1000 {
        let start = if round % 2 == 0 {
            let mut start = file.start().to_vec();
            mutate(&mut random, &mut start);
            start
        } else {
            let mut head = head.clone();
            let i = below(&mut random, head.len());
            if let Some(entry) = head.values_mut().nth(i) {
                mutate_json(&mut random, entry);
            }
            before_data(head, |_| 0)
        };
        // The data moves with the header's end, or the file keeps its size.
        let bytes = if round % 8 < 6 { start.len() as u64 + data } else { file.bytes() };
        // Another file each time: the one before may still be mapped.
        std::fs::remove_file(&path).unwrap();
        write_sparse(&path, &start, bytes).unwrap();
        let began = std::time::Instant::now();
        if let Ok(model) = Model::open(folder.path()) {
            let read: usize =
                model.checkpoint.tensors().map(|(id, _)| model.checkpoint.bytes(id).len()).sum();
            assert_eq!(read as u64, model.checkpoint.total_bytes());
            Inspection::of(&model, model.geometry.max_context);
            opened += 1;
        }
        assert!(began.elapsed().as_secs_f64() < 1.0, "opening took {:?}", began.elapsed());
    }
    // Few changes of a header are harmless; without any, nothing of what opens would be tried.
    assert!((1..500).contains(&opened), "{opened} of 1000 opened");
}

#[test]
fn mutations_on_disk_are_no_different() {
    let mut random = Random::new(3);
    let sound = tiny();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), &sound.config_json).unwrap();
    for _ in 0..200 {
        let mut bytes = sound.files[0].1.to_vec();
        mutate(&mut random, &mut bytes);
        // Another file each time: the one before may still be mapped.
        let path = folder.path().join("model.safetensors");
        std::fs::remove_file(&path)
            .or_else(|e| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let parts = MemoryModel { files: vec![("model.safetensors".into(), bytes.into())], ..sound.clone() };
        let (on_disk, in_memory) = (Model::open(folder.path()), Model::from_memory(parts));
        assert_eq!(on_disk.is_ok(), in_memory.is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes at all, with a header length that is often possible.
    #[test]
    fn any_bytes_as_a_weight_file(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0u64..64) {
        if bytes.len() >= 8 && length < 48 {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
            if let Some(first) = bytes.get_mut(8) { *first = b'{'; }
        }
        let parts = MemoryModel { files: vec![("model.safetensors".into(), bytes.into())], ..tiny() };
        prop_assert!(!exercise(parts));
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is written is what is read, wherever the data starts and whatever the sizes.
    #[test]
    fn tensors_come_back(
        sizes in proptest::collection::vec((0u64..5, 1u64..7, 0usize..3), 1..12),
        padded in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let tensors: Vec<DraftTensor> = sizes.iter().enumerate().map(|(i, (rows, cols, element))| {
            let element = [ElementType::U32, ElementType::BF16, ElementType::U8][*element];
            let mut tensor = DraftTensor {
                name: format!("visual.{i}"), element, shape: vec![*rows, *cols], bytes: Vec::new(),
            };
            tensor.bytes = vec![0; tensor.size() as usize];
            random.fill(&mut tensor.bytes);
            tensor
        }).collect();
        let mut draft = Draft::of(&Spec::tiny());
        draft.shards[0].extend(tensors.iter().cloned());
        draft.padded = padded;
        let model = Model::from_memory(draft.encode()).unwrap();
        for tensor in &tensors {
            let (id, info) = model.checkpoint.tensors().find(|(_, info)| info.name == tensor.name).unwrap();
            prop_assert_eq!(info.element, tensor.element);
            prop_assert_eq!(info.shape.iter().map(|n| *n as u64).collect::<Vec<_>>(), tensor.shape.clone());
            prop_assert_eq!(model.checkpoint.bytes(id), &tensor.bytes[..]);
        }
    }
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Model>();
}
