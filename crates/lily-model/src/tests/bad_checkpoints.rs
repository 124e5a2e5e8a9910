//! One fault of a checkpoint at a time, and the exact error it gives.

use std::fs;

use serde_json::{Value, json};

use super::{refused, tiny};
use crate::{
    ElementType, MemoryModel, Model, ModelError,
    testing::{Draft, DraftTensor, Spec, header, safetensors, write_checkpoint},
};

const FILE: &str = "model.safetensors";
const NORM: &str = "language_model.model.norm.weight";
const Q: &str = "language_model.model.layers.1.self_attn.q_proj";

fn file() -> String {
    FILE.to_owned()
}

/// The error after a change of the tensors, which are then written as they should be.
fn after(change: impl FnOnce(&mut Vec<DraftTensor>)) -> ModelError {
    let mut draft = Draft::of(&Spec::tiny());
    change(&mut draft.shards[0]);
    refused(draft.encode())
}

fn tensor<'a>(tensors: &'a mut [DraftTensor], name: &str) -> &'a mut DraftTensor {
    tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
}

/// The error after a change of the header over unchanged data.
fn after_header(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> ModelError {
    let draft = Draft::of(&Spec::tiny());
    let mut header = header(&draft.shards[0]);
    change(&mut header);
    refused(with_file(safetensors(header, &draft.shards[0], true)))
}

/// A tiny model with another weight file.
fn with_file(bytes: Vec<u8>) -> MemoryModel {
    MemoryModel { files: vec![(FILE.into(), bytes.into())], ..tiny() }
}

/// A sound weight file of the tiny model.
fn sound_file() -> Vec<u8> {
    tiny().files[0].1.to_vec()
}

#[test]
fn missing_tensors() {
    let all = Draft::of(&Spec::tiny()).shards.concat();
    for absent in &all {
        let error = after(|tensors| tensors.retain(|tensor| tensor.name != absent.name));
        let ModelError::MissingTensor { file, tensor, wanted } = error else { panic!("{error}") };
        assert_eq!((file.as_str(), tensor.as_str()), (FILE, absent.name.as_str()));
        assert!(wanted.ends_with(&format!("{:?}", absent.shape)), "{wanted}");
        assert!(wanted.contains(absent.element.name()), "{wanted}");
    }
    let empty = after(Vec::clear);
    assert!(matches!(empty, ModelError::MissingTensor { .. }), "{empty}");
}

#[test]
fn a_name_taken_out_of_the_header_is_missed_by_name() {
    let file = sound_file();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&file[8..8 + length]).unwrap();
    let name = header.keys().find(|name| name.ends_with("mlp.gate.scales")).unwrap().clone();
    header.remove(&name);
    let json = serde_json::to_vec(&header).unwrap();
    let bytes = [&(json.len() as u64).to_le_bytes()[..], &json, &file[8 + length..]].concat();
    let error = Model::from_memory(with_file(bytes)).unwrap_err();
    assert!(matches!(&error, ModelError::MissingTensor { tensor, .. } if *tensor == name), "{error}");
}

#[test]
fn tensors_of_another_type() {
    for (name, wanted, other) in [
        (format!("{Q}.weight"), "U32", ElementType::F32),
        (format!("{Q}.weight"), "U32", ElementType::I32),
        (format!("{Q}.scales"), "BF16", ElementType::F16),
        (format!("{Q}.biases"), "BF16", ElementType::U16),
        (NORM.to_owned(), "BF16 or F32", ElementType::F16),
        ("language_model.model.layers.0.linear_attn.A_log".to_owned(), "BF16 or F32", ElementType::U32),
    ] {
        assert_eq!(
            after(|tensors| tensor(tensors, &name).element = other),
            ModelError::TensorType {
                file: file(),
                tensor: name.clone(),
                found: other.name().to_owned(),
                wanted: wanted.to_owned(),
            }
        );
    }
}

#[test]
fn misshapen_tensors() {
    let because = "64 inputs at 4 bits in groups of 64, as config.json says";
    let sizes = "the sizes in config.json";
    let conv = "language_model.model.layers.0.linear_attn.conv1d.weight";
    let down = "language_model.model.layers.0.mlp.switch_mlp.down_proj.weight";
    let weight = format!("{Q}.weight");
    for (name, shape, wanted, because) in [
        (weight.as_str(), vec![8, 256], vec![256, 8], because),
        (&weight, vec![2048], vec![256, 8], because),
        (&weight, vec![1, 256, 8], vec![256, 8], because),
        (NORM, vec![1, 64], vec![64], sizes),
        (NORM, vec![64, 1], vec![64], sizes),
        // A raw Hugging Face convolution.
        (conv, vec![192, 1, 4], vec![192, 4, 1], sizes),
        (down, vec![6 * 64, 8], vec![6, 64, 8], because),
    ] {
        assert_eq!(
            after(|tensors| tensor(tensors, name).shape = shape.iter().map(|n| *n as u64).collect()),
            ModelError::Shape {
                file: file(),
                tensor: name.to_owned(),
                found: shape,
                wanted,
                because: because.to_owned(),
            }
        );
    }
    // Other sizes with the bytes they need.
    let error = after(|tensors| {
        let norm = tensor(tensors, NORM);
        (norm.shape, norm.bytes) = (vec![63], vec![0; 126]);
    });
    assert!(matches!(&error, ModelError::Shape { found, .. } if *found == [63]), "{error}");
}

#[test]
fn tensors_too_many() {
    let extra = |name: &str| DraftTensor {
        name: name.to_owned(),
        element: ElementType::BF16,
        shape: vec![2],
        bytes: vec![0; 4],
    };
    for name in [
        "language_model.model.layers.3.input_layernorm.weight",
        "language_model.model.layers.0.self_attn.q_norm.weight",
        "language_model.model.layers.1.self_attn.q_proj.bias",
        "language_model.model.rotary_emb.inv_freq",
        "something_else",
        "",
    ] {
        assert_eq!(
            after(|tensors| tensors.push(extra(name))),
            ModelError::UnexpectedTensor { file: file(), tensor: name.to_owned(), more: 0 }
        );
    }
    assert_eq!(
        after(|tensors| tensors.extend([extra("b"), extra("a"), extra("c")])),
        ModelError::UnexpectedTensor { file: file(), tensor: "a".to_owned(), more: 2 }
    );
    // One layer fewer in the config than in the file.
    let mut draft = Draft::of(&Spec::tiny());
    draft.config["num_hidden_layers"] = json!(2);
    draft.config["layer_types"] = json!(["linear_attention", "full_attention"]);
    let error = refused(draft.encode());
    assert!(
        matches!(&error, ModelError::UnexpectedTensor { tensor, more, .. }
        if tensor.starts_with("language_model.model.layers.2.") && *more > 30),
        "{error}"
    );
    // Tied embeddings with an lm_head all the same.
    let mut draft = Draft::of(&Spec::tiny());
    draft.config["tie_word_embeddings"] = json!(true);
    let error = refused(draft.encode());
    assert_eq!(
        error,
        ModelError::UnexpectedTensor {
            file: file(),
            tensor: "language_model.lm_head.biases".to_owned(),
            more: 2
        }
    );
}

#[test]
fn duplicate_tensors() {
    // Twice in one header.
    let draft = Draft::of(&Spec::tiny());
    let json = Value::Object(header(&draft.shards[0])).to_string();
    let twice = json.replacen(
        '{',
        &format!("{{\"{NORM}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},"),
        1,
    );
    assert_eq!(
        refused(with_file(raw_file(twice.as_bytes(), &draft.shards[0]))),
        ModelError::DuplicateTensor { tensor: NORM.to_owned(), file: file(), other: file() }
    );
    // In two shards.
    let mut draft = Draft::of(&Spec { shards: 2, ..Spec::tiny() });
    let first = draft.shards[0][0].clone();
    draft.shards[1].push(first.clone());
    assert_eq!(
        refused(draft.encode()),
        ModelError::DuplicateTensor {
            tensor: first.name,
            file: "model-00002-of-00002.safetensors".to_owned(),
            other: "model-00001-of-00002.safetensors".to_owned(),
        }
    );
    // With and without the prefix.
    let error = after(|tensors| {
        let mut copy = tensor(tensors, NORM).clone();
        copy.name = "model.norm.weight".to_owned();
        tensors.push(copy);
    });
    assert!(
        matches!(&error, ModelError::DuplicateTensor { tensor, .. } if tensor == "model.norm.weight"),
        "{error}"
    );
}

/// A weight file with this header text before the data of `tensors`.
fn raw_file(json: &[u8], tensors: &[DraftTensor]) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    tensors.iter().for_each(|tensor| bytes.extend_from_slice(&tensor.bytes));
    bytes
}

#[test]
fn offsets_that_do_not_fit() {
    let draft = Draft::of(&Spec::tiny());
    let data_bytes: u64 = draft.shards[0].iter().map(DraftTensor::size).sum();
    let norm = || NORM.to_owned();
    let offsets_of = |name: &str| header(&draft.shards[0])[name]["data_offsets"].clone();
    let norm_start = offsets_of(NORM)[0].as_u64().unwrap();
    let with =
        |start: u64, end: u64| after_header(|header| header[NORM]["data_offsets"] = json!([start, end]));
    for (start, end) in [
        (norm_start, data_bytes + 1),
        (data_bytes, data_bytes + 128),
        (u64::MAX - 128, u64::MAX),
        (0, u64::MAX),
        (norm_start + 128, norm_start),
    ] {
        assert_eq!(
            with(start, end),
            ModelError::OutOfFile { file: file(), tensor: norm(), start, end, data_bytes }
        );
    }
    for bytes in [0, 126, 127, 129, 256] {
        assert_eq!(
            with(norm_start, norm_start + bytes),
            ModelError::TensorBytes { file: file(), tensor: norm(), found: bytes, wanted: 128 }
        );
    }
    let before = draft.shards[0].iter().rev().skip_while(|t| t.name != NORM).nth(1).unwrap();
    assert_eq!(
        with(norm_start - 2, norm_start + 126),
        ModelError::Overlap {
            file: file(),
            tensor: norm(),
            other: before.name.clone(),
            found: norm_start - 2,
            wanted: norm_start,
        }
    );
    // All tensors where they are, but one.
    assert!(matches!(with(0, 128), ModelError::Overlap { .. }));
    // Its bytes belong to no tensor then, but its name says more.
    assert!(matches!(after_header(|header| drop(header.remove(NORM))), ModelError::MissingTensor { .. }));
    let mut longer = sound_file();
    longer.extend([0; 3]);
    assert_eq!(
        refused(with_file(longer)),
        ModelError::Unclaimed { file: file(), start: data_bytes, end: data_bytes + 3 }
    );
}

#[test]
fn shapes_that_are_no_size() {
    for shape in [vec![1 << 40, 1 << 40], vec![u64::MAX], vec![1 << 32, 1 << 31, 0]] {
        let error = after_header(|header| header[NORM]["shape"] = json!(shape));
        let wanted =
            ModelError::ShapeOverflow { file: file(), tensor: NORM.to_owned(), found: shape.clone() };
        if shape.contains(&0) {
            assert!(matches!(error, ModelError::TensorBytes { wanted: 0, .. }), "{error}");
        } else {
            assert_eq!(error, wanted);
        }
    }
    let odd = after_header(|header| {
        header[NORM]["dtype"] = json!("F4");
        header[NORM]["shape"] = json!([255]);
    });
    assert_eq!(odd, ModelError::ShapeOverflow { file: file(), tensor: NORM.to_owned(), found: vec![255] });
}

#[test]
fn headers_of_another_structure() {
    assert_eq!(
        after_header(|header| header[NORM]["dtype"] = json!("Q4_K")),
        ModelError::UnknownType { file: file(), tensor: NORM.to_owned(), found: "Q4_K".to_owned() }
    );
    for (key, value, says) in [
        ("shape", json!([-64]), "invalid value: integer `-64`, expected u64"),
        ("shape", json!([64.0]), "invalid type: floating point `64.0`, expected u64"),
        ("shape", json!("64"), "expected a list of at most 8 sizes"),
        (
            "shape",
            json!([1, 1, 1, 1, 1, 1, 1, 1, 64]),
            "invalid length 9, expected a list of at most 8 sizes",
        ),
        ("data_offsets", json!([1]), "invalid length 1, expected an array of length 2"),
        ("data_offsets", json!([1, 2, 3]), "trailing"),
        ("data_offsets", json!([-1, 127]), "invalid value: integer `-1`"),
        ("dtype", json!(4), "invalid type: integer `4`, expected a string"),
    ] {
        let error = after_header(|header| header[NORM][key] = value);
        let ModelError::Json { file, problem } = &error else { panic!("{error}") };
        assert_eq!(file, FILE);
        assert!(problem.contains(says), "{problem}");
    }
    let error = after_header(|header| drop(header[NORM].as_object_mut().unwrap().remove("shape")));
    let ModelError::Json { problem, .. } = &error else { panic!("{error}") };
    assert!(problem.contains(&format!("tensor {NORM}: missing field `shape`")), "{problem}");
    for json in [&b"[]"[..], b"", b"  {}", b"\"a\"", b"\xef\xbb\xbf{}"] {
        let wanted = "the header does not start with {: not a safetensors file".to_owned();
        assert_eq!(
            refused(with_file(raw_file(json, &[]))),
            ModelError::Json { file: file(), problem: wanted }
        );
    }
    for json in [&b"{"[..], b"{\"a\xff\":1}", b"{\"a\":1}", b"{}x", b"{\"a\":{}}", b"{\"a\":[[[[]]]]}"] {
        let error = refused(with_file(raw_file(json, &[])));
        assert!(matches!(error, ModelError::Json { .. }), "{error}");
    }
    // Deep nesting, in a part that is skipped and in one that is read.
    for start in ["{\"__metadata__\":", "{\"a\":{\"shape\":"] {
        let deep = start.to_owned() + &"[".repeat(1 << 20);
        let error = refused(with_file(raw_file(deep.as_bytes(), &[])));
        assert!(matches!(error, ModelError::Json { .. }), "{error}");
    }
}

#[test]
fn header_lengths() {
    let sound = sound_file();
    let rest = sound.len() as u64 - 8;
    for length in [rest + 1, 1 << 25, 1 << 40, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
        let mut bytes = sound.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        assert_eq!(
            refused(with_file(bytes)),
            ModelError::HeaderLength { file: file(), found: length, limit: rest, file_bytes: rest + 8 }
        );
    }
    for length in [0, 1, 100, rest] {
        let mut bytes = sound.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let error = refused(with_file(bytes));
        assert!(matches!(error, ModelError::Json { .. }), "{error}");
    }
    for found in 0..8 {
        assert_eq!(
            refused(with_file(sound[..found].to_vec())),
            ModelError::TooShort { file: file(), found: found as u64 }
        );
    }
}

#[test]
fn headers_as_large_as_is_allowed() {
    const LIMIT: usize = 16 << 20;
    let of = |json: Vec<u8>| refused(with_file(raw_file(&json, &[])));
    let filled = |start: &str, unit: &str| {
        let mut json = start.as_bytes().to_vec();
        json.extend(unit.bytes().cycle().take(LIMIT - start.len()));
        json
    };
    for json in [
        filled("{", " "),
        filled("{\"", "x"),
        filled("{\"", "\\u00e9"),
        filled("{\"__metadata__\":[", "1,"),
        filled("{\"a\":{\"dtype\":\"U8\",\"shape\":[", "1,"),
        filled("{", "\"\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[0,0]},"),
    ] {
        let error = of(json);
        assert!(matches!(error, ModelError::Json { .. } | ModelError::TooManyTensors { .. }), "{error}");
    }
    let error = of(vec![b'{'; LIMIT + 1]);
    assert!(matches!(error, ModelError::HeaderLength { limit, .. } if limit == LIMIT as u64), "{error}");
    let mut entries = b"{".to_vec();
    for i in 0..=1 << 16 {
        entries.extend(format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},").bytes());
    }
    assert_eq!(of(entries), ModelError::TooManyTensors { file: file(), limit: 1 << 16 });
}

#[test]
fn messages_of_hostile_names_are_short_and_plain() {
    let name = format!("\u{1b}[31m{}", "x".repeat(1 << 20));
    let error = after_header(|header| {
        drop(header.insert(name, json!({ "dtype": "\n", "shape": [], "data_offsets": [0, 0] })))
    });
    let message = error.to_string();
    assert!(message.len() < 1000 && !message.contains(char::is_control), "{message}");
}

#[test]
fn files_cut_off_anywhere() {
    let sound = sound_file();
    let json_end = 8 + u64::from_le_bytes(sound[..8].try_into().unwrap()) as usize;
    for at in (json_end..sound.len()).step_by(97) {
        let error = refused(with_file(sound[..at].to_vec()));
        let ModelError::OutOfFile { data_bytes, .. } = error else { panic!("{at}: {error}") };
        assert_eq!(data_bytes as usize, at - json_end);
    }
    for at in (8..json_end).step_by(97) {
        let error = refused(with_file(sound[..at].to_vec()));
        assert!(matches!(error, ModelError::HeaderLength { .. }), "{at}: {error}");
    }
}

#[test]
fn hugging_face_checkpoints_are_told_from_mlx() {
    let error = after(|tensors| {
        let mut raw = tensor(tensors, NORM).clone();
        raw.name = "model.language_model.layers.0.mlp.experts.gate_up_proj".to_owned();
        tensors.insert(0, raw);
    });
    let ModelError::NotMlx { file, found } = &error else { panic!("{error}") };
    assert_eq!(file, FILE);
    assert!(found.contains("mlp.experts.gate_up_proj"), "{found}");
    assert!(error.to_string().contains("mlx_lm.convert"), "{error}");
    let mut unquantized = Draft::of(&Spec::tiny());
    unquantized.config["quantization"] = Value::Null;
    assert_eq!(
        refused(unquantized.encode()),
        ModelError::NotMlx {
            file: "config.json".to_owned(),
            found: "there is no field `quantization`".to_owned()
        }
    );
}

#[test]
fn git_lfs_pointers() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 20000000000\n";
    assert_eq!(refused(with_file(pointer.to_vec())), ModelError::LfsPointer { file: file() });
}

#[test]
fn indexes_that_do_not_fit() {
    let sound = Draft::of(&Spec { shards: 2, ..Spec::tiny() });
    let (first, second) = (sound.file_name(0), sound.file_name(1));
    let index = "model.safetensors.index.json";
    let with_index = |value: Value| {
        let mut parts = sound.encode();
        parts.files[2].1 = value.to_string().into_bytes().into();
        refused(parts)
    };
    let changed = |name: &str, shard: Value| {
        let mut value = sound.index();
        value["weight_map"][name] = shard;
        with_index(value)
    };
    // Listed, but in no shard.
    assert_eq!(
        changed("model.other", json!(first)),
        ModelError::MissingTensor {
            file: first.clone(),
            tensor: "model.other".to_owned(),
            wanted: format!("what {index} lists")
        }
    );
    // Listed in the wrong shard.
    assert_eq!(
        changed(NORM, json!(first)),
        ModelError::NotInIndex {
            file: second.clone(),
            tensor: NORM.to_owned(),
            index: index.to_owned(),
            wanted: format!("in {first}")
        }
    );
    // Not listed.
    let mut value = sound.index();
    value["weight_map"].as_object_mut().unwrap().remove(NORM);
    assert_eq!(
        with_index(value),
        ModelError::NotInIndex {
            file: second.clone(),
            tensor: NORM.to_owned(),
            index: index.to_owned(),
            wanted: "nowhere".to_owned()
        }
    );
    for name in [
        "../weights.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "weights.bin",
        "",
        "..",
        "a\\b.safetensors",
    ] {
        assert_eq!(
            changed(NORM, json!(name)),
            ModelError::ShardName { file: index.to_owned(), found: name.to_owned() }
        );
    }
    assert_eq!(
        changed(NORM, json!("model-00003-of-00003.safetensors")),
        ModelError::MissingFile {
            file: "model-00003-of-00003.safetensors".to_owned(),
            needed_by: index.to_owned()
        }
    );
    for value in [
        json!({}),
        json!([]),
        json!({ "weight_map": [] }),
        json!({ "weight_map": {} }),
        json!({ "weight_map": { "a": 1 } }),
    ] {
        let error = with_index(value);
        assert!(matches!(&error, ModelError::Json { file, .. } if file == index), "{error}");
    }
}

#[test]
fn folders_that_are_not_whole() {
    let spec = Spec { shards: 2, ..Spec::tiny() };
    let with = |change: &dyn Fn(&std::path::Path)| {
        let folder = tempfile::tempdir().unwrap();
        write_checkpoint(folder.path(), &spec).unwrap();
        change(folder.path());
        let error = Model::open(folder.path()).unwrap_err();
        let inside = |file: &str| folder.path().join(file).display().to_string();
        (
            error,
            inside("config.json"),
            inside("model-00002-of-00002.safetensors"),
            inside("model.safetensors"),
        )
    };
    let remove = |file: &str| {
        let file = file.to_owned();
        move |folder: &std::path::Path| fs::remove_file(folder.join(&file)).unwrap()
    };
    let (error, config, ..) = with(&remove("config.json"));
    assert_eq!(error, ModelError::MissingFile { file: config, needed_by: "every model".to_owned() });
    let (error, _, shard, _) = with(&remove("model-00002-of-00002.safetensors"));
    assert_eq!(
        error,
        ModelError::MissingFile { file: shard, needed_by: "model.safetensors.index.json".to_owned() }
    );
    let (error, _, _, single) = with(&remove("model.safetensors.index.json"));
    assert!(matches!(&error, ModelError::NoWeights { file, .. } if *file == single), "{error}");
    // Folders where files should be.
    let (error, config, ..) = with(&|folder| {
        fs::remove_file(folder.join("config.json")).unwrap();
        fs::create_dir(folder.join("config.json")).unwrap();
    });
    assert!(matches!(&error, ModelError::MissingFile { file, .. } if *file == config), "{error}");
    let (error, _, shard, _) = with(&|folder| {
        let shard = folder.join("model-00002-of-00002.safetensors");
        fs::remove_file(&shard).unwrap();
        fs::create_dir(&shard).unwrap();
    });
    assert!(matches!(&error, ModelError::MissingFile { file, .. } if *file == shard), "{error}");
    // An empty file.
    let (error, _, shard, _) =
        with(&|folder| fs::write(folder.join("model-00002-of-00002.safetensors"), b"").unwrap());
    assert_eq!(error, ModelError::TooShort { file: shard, found: 0 });
    // A file that was cut off.
    let (error, _, shard, _) = with(&|folder| {
        let path = folder.join("model-00002-of-00002.safetensors");
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    });
    assert!(matches!(&error, ModelError::OutOfFile { file, .. } if *file == shard), "{error}");
    let nowhere = std::path::Path::new("/nowhere/at/all");
    assert!(matches!(Model::open(nowhere).unwrap_err(), ModelError::MissingFile { .. }));
    // Sound after all.
    write_checkpoint(tempfile::tempdir().unwrap().path(), &spec).unwrap();
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_file_to_wait_for() {
    let folder = tempfile::tempdir().unwrap();
    write_checkpoint(folder.path(), &Spec::tiny()).unwrap();
    let path = folder.path().join(FILE);
    fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(matches!(Model::open(folder.path()).unwrap_err(), ModelError::NoWeights { .. }));
}

/// The samplers' settings would silently be others.
#[cfg(unix)]
#[test]
fn a_broken_generation_config_is_not_an_absent_one() {
    let folder = tempfile::tempdir().unwrap();
    write_checkpoint(folder.path(), &Spec::tiny()).unwrap();
    let path = folder.path().join("generation_config.json");
    fs::remove_file(&path).unwrap();
    Model::open(folder.path()).unwrap();
    std::os::unix::fs::symlink("nothing", &path).unwrap();
    let error = Model::open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingFile { file, .. } if file.ends_with("generation_config.json"))
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(Model::open(folder.path()).unwrap_err(), ModelError::MissingFile { .. }));
}

#[cfg(unix)]
#[test]
fn links_are_followed() {
    let (blobs, snapshot) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_checkpoint(blobs.path(), &Spec::tiny()).unwrap();
    for name in ["config.json", "generation_config.json", FILE] {
        std::os::unix::fs::symlink(blobs.path().join(name), snapshot.path().join(name)).unwrap();
    }
    Model::open(snapshot.path()).unwrap();
}
