//! The header and the config of a checkpoint of true size, changed at random: opened or refused with an error that names its
//! place, quickly and in little memory.
//!
//! A test binary of its own, because its allocator refuses what a bad header must never ask for.

use std::{alloc::System, fs, path::Path, time::Instant};

use cap::Cap;
use lily_model::{
    Model, ModelError, Preset,
    inspect::Inspection,
    synth::Synth,
    testing::{
        Random,
        mutate::{below, mutate, mutate_json},
        write_hollow, write_sparse,
    },
};
use serde_json::Value;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// What opening may have in memory at once, beside the mapped file: the sound model takes less than 2 MiB, as measured by
/// lowering this.
const HEAP_BYTES: usize = 8 << 20;

const SECONDS: f64 = 1.0;

/// The place that an error is about besides its file: a tensor or a field; `None` where the whole file is wrong.
fn place(error: &ModelError) -> Option<&str> {
    use ModelError::*;
    match error {
        Json { .. } | HeaderLength { .. } | TooShort { .. } | TooManyTensors { .. } | Unclaimed { .. } => {
            None
        }
        // What is found there is the field.
        NotMlx { found, .. } => Some(found),
        MissingField { field, .. } | Field { field, .. } | Unsupported { field, .. } => Some(field),
        UnknownType { tensor, .. }
        | ShapeOverflow { tensor, .. }
        | OutOfFile { tensor, .. }
        | TensorBytes { tensor, .. }
        | Overlap { tensor, .. }
        | DuplicateTensor { tensor, .. }
        | MissingTensor { tensor, .. }
        | UnexpectedTensor { tensor, .. }
        | TensorType { tensor, .. }
        | Shape { tensor, .. }
        | Group { tensor, .. } => Some(tensor),
        other => panic!("no change of a header or a config leads to this: {other:?}"),
    }
}

/// Opens the folder and reads what opened; whether it did.
fn exercise(folder: &Path) -> bool {
    let model = match Model::open(folder) {
        Ok(model) => model,
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("model.safetensors") || text.contains("config.json"), "no file in: {text}");
            assert!(place(&error).is_none_or(|place| text.contains(place)), "no place in: {text}");
            assert!(text.len() < 4096, "{} bytes of message", text.len());
            return false;
        }
    };
    let read: usize = model.checkpoint.tensors().map(|(id, _)| model.checkpoint.bytes(id).len()).sum();
    assert_eq!(read as u64, model.checkpoint.total_bytes());
    Inspection::of(&model, model.geometry.max_context);
    true
}

/// A header after its length.
fn with_length(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header].concat()
}

#[test]
fn a_thousand_mutations() {
    // What a panic says is not what the limit is for.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        HEAP.set_limit(usize::MAX).unwrap();
        report(panic);
    }));
    let synth = Synth::new(Preset::named("qwen3.6-35b-a3b").unwrap(), 0).unwrap();
    let files = synth.files(&[1], u64::MAX);
    let file = &files.shards[0];
    let data = file.bytes() - file.start().len() as u64;
    let head: serde_json::Map<String, Value> = serde_json::from_slice(&file.start()[8..]).unwrap();
    let (_, sound) = files.documents.iter().find(|(name, _)| name == "config.json").unwrap();
    let config: Value = serde_json::from_slice(sound).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_hollow(folder.path(), &files).unwrap();
    assert!(exercise(folder.path()));

    let (weights, config_file) = (folder.path().join(&file.name), folder.path().join("config.json"));
    let (mut random, mut opened) = (Random::new(35), [0; 4]);
    for round in 0..1000 {
        let mut start = file.start().to_vec();
        let mut text = sound.clone();
        match round % 4 {
            // The header's length, which chance would seldom meet.
            0 if round % 8 == 0 => {
                let mut length = start[..8].to_vec();
                mutate(&mut random, &mut length);
                start.splice(..8, length);
            }
            0 => mutate(&mut random, &mut start),
            1 => {
                let mut head = head.clone();
                let i = below(&mut random, head.len());
                if let Some(entry) = head.values_mut().nth(i) {
                    mutate_json(&mut random, entry);
                }
                start = with_length(Value::Object(head).to_string().as_bytes());
            }
            2 => mutate(&mut random, &mut text),
            _ => {
                let mut config = config.clone();
                mutate_json(&mut random, &mut config);
                text = config.to_string().into_bytes();
            }
        }
        // The data moves with the header's end, or the file keeps its size.
        let bytes = if round % 16 < 12 { start.len() as u64 + data } else { file.bytes() };
        // Another file each time: the one before may still be mapped.
        fs::remove_file(&weights).unwrap();
        write_sparse(&weights, &start, bytes).unwrap();
        fs::write(&config_file, &text).unwrap();
        let began = Instant::now();
        HEAP.set_limit(HEAP.allocated() + HEAP_BYTES).unwrap();
        let opens = exercise(folder.path());
        HEAP.set_limit(usize::MAX).unwrap();
        assert!(began.elapsed().as_secs_f64() < SECONDS, "round {round} took {:?}", began.elapsed());
        opened[round % 4] += usize::from(opens);
    }
    // Few changes are harmless, and none of a value of the header, where each counts. With none at all, nothing of what
    // opens would be tried; with all, nothing refused.
    let [bytes, values, config_bytes, config_values] = opened;
    assert_eq!(values, 0, "a header opened with a wrong value");
    for (kind, opened) in
        [("header bytes", bytes), ("config bytes", config_bytes), ("config values", config_values)]
    {
        assert!((1..200).contains(&opened), "{kind}: {opened} of 250 opened");
    }
}
