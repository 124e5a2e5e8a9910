//! Checkpoints changed at random: opening one never panics and never takes long, and one that opens can be used whole.
//! One of true size is changed in `tests/true_size.rs`.

use proptest::prelude::*;
use serde_json::Value;

use super::{open_quickly, tiny};
use crate::{
    ElementType, MemoryModel, Model,
    inspect::Inspection,
    testing::{
        Draft, DraftTensor, Random, Spec, header,
        mutate::{below, mutate, mutate_json},
        safetensors,
    },
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
