//! Synthetic checkpoints as a whole: they open, they are the same however they are made, they are scaled as they should.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Model, PlainTensor, QuantizedMatrix};

/// A preset made small, in which all sizes differ where they may.
pub(crate) fn small() -> Preset {
    let mut preset = Preset::named("layer4").unwrap();
    let g = &mut preset.geometry;
    (g.hidden, g.vocab, g.max_context) = (128, 700, 512);
    (g.attention.query_heads, g.attention.head_dim, g.attention.rotary_dim) = (4, 32, 14);
    (g.delta.key_heads, g.delta.value_heads, g.delta.key_dim, g.delta.value_dim) = (2, 4, 20, 32);
    (g.moe.experts, g.moe.top_k, g.moe.expert_width, g.moe.shared_width) = (8, 2, 64, 192);
    preset
}

const SILENT: Progress = Progress { written: &|_| (), cancelled: &|| false };

fn claim(folder: &Path) -> SynthFolder {
    SynthFolder::claim(folder, true).unwrap()
}

/// Every file of a folder.
fn contents(folder: &Path) -> HashMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn every_preset_opens_with_the_tensors_that_plans_are_made_for() {
    for preset in Preset::all() {
        let synth = Synth::new(preset, 1).unwrap();
        for shard_bytes in [5 << 30, u64::MAX] {
            let folder = tempfile::tempdir().unwrap();
            crate::testing::write_hollow(folder.path(), &synth.files(&[5, 3], shard_bytes)).unwrap();
            let model = Model::open(folder.path()).unwrap();
            assert_eq!(model.geometry, synth.preset().geometry);
            assert_eq!(model.end_tokens, [3, 5]);
            assert_eq!(model.checkpoint.total_bytes(), synth.total_bytes());
            let names = |weights: &Weights, name: &dyn Fn(TensorId) -> String| {
                let lm_head = name(weights.lm_head.scales);
                (lm_head, name(weights.layers[3].moe.down.biases), name(weights.layers[2].post_norm.tensor))
            };
            let in_file = |id| model.checkpoint.info(id).name.clone();
            let in_synth = |id| synth.tensor(id).unwrap().name.clone();
            assert_eq!(names(&model.weights, &in_file), names(synth.weights(), &in_synth));
        }
    }
}

/// A model that is made in place is the model of the files, whole and in parts, before and after it is in memory.
#[test]
fn a_model_that_is_made_in_place_is_that_of_the_files() {
    let synth = Synth::new(small(), 9).unwrap();
    let folder = tempfile::tempdir().unwrap();
    synth.files(&[7, 2], 100_000).write(claim(folder.path()), 2, SILENT).unwrap();
    let (written, made) =
        (Model::open(folder.path()).unwrap(), Model::random("synth:small:9", &synth, &[7, 2, 7]));
    assert_eq!((&made.geometry, &made.end_tokens), (&written.geometry, &written.end_tokens));
    assert_eq!(made.checkpoint.total_bytes(), written.checkpoint.total_bytes());
    let files: Vec<_> = made.checkpoint.files().collect();
    assert_eq!(files, [("synth:small:9", synth.total_bytes())]);
    let by_name: HashMap<_, _> =
        written.checkpoint.tensors().map(|(id, info)| (info.name.clone(), (id, info))).collect();
    assert_eq!(by_name.len(), made.checkpoint.tensors().count());
    assert_eq!(made.checkpoint.mapped_bytes(), synth.total_bytes());
    for (id, info) in made.checkpoint.tensors() {
        let (of_file, in_file) = by_name[&info.name];
        assert_eq!((info.element, &info.shape), (in_file.element, &in_file.shape));
        let want = written.checkpoint.bytes(of_file);
        let parts = |made: &Model| {
            let mut bytes = vec![0; want.len()];
            for (i, part) in bytes.chunks_mut(1001).enumerate() {
                made.checkpoint.read(id, 1001 * i, part);
            }
            bytes
        };
        assert!(parts(&made) == want, "{}", info.name);
        assert!(made.checkpoint.bytes(id) == want && parts(&made) == want, "{}", info.name);
    }
    assert_eq!(made.checkpoint.mapped_bytes(), 0);
    let again = Model::random("again", &synth, &[]);
    let most = AtomicU64::new(0);
    again.checkpoint.warm(&|done| {
        most.fetch_max(done, Ordering::Relaxed);
    });
    assert_eq!((most.into_inner(), again.checkpoint.mapped_bytes()), (synth.total_bytes(), 0));
}

#[test]
fn a_seed_gives_the_same_files_for_every_number_of_threads() {
    let synth = Synth::new(small(), 3).unwrap();
    let files = synth.files(&[1], 300_000);
    assert!(files.shards.len() > 2);
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for threads in [1, 2, 7] {
        let (out, counted) = (folder.path().join(threads.to_string()), AtomicU64::new(0));
        let written = |bytes| {
            counted.fetch_add(bytes, Ordering::Relaxed);
        };
        assert_eq!(
            files.write(claim(&out), threads, Progress { written: &written, ..SILENT }).unwrap(),
            Written::All
        );
        assert_eq!(counted.into_inner(), files.bytes());
        all.push(contents(&out));
        Model::open(&out).unwrap();
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    assert_eq!(all[0].len(), files.shards.len() + files.documents.len());
    let other = Synth::new(small(), 4).unwrap();
    let out = folder.path().join("other");
    other.files(&[1], 300_000).write(claim(&out), 2, SILENT).unwrap();
    assert_ne!(contents(&out), all[0]);
}

#[test]
fn any_range_of_a_file_is_that_range_of_the_tensors() {
    let synth = Synth::new(small(), 5).unwrap();
    let files = synth.files(&[1], 400_000);
    let mut read = HashMap::new();
    for file in &files.shards {
        let mut whole = vec![0; file.bytes() as usize];
        file.fill(0, &mut whole);
        for (start, len) in
            [(0, 9), (file.start().len() - 3, 7), (file.start().len(), 5000), (70_001, 33_333)]
        {
            let wanted = &whole[start.min(whole.len())..(start + len).min(whole.len())];
            let mut part = vec![0xAA; wanted.len()];
            file.fill(start as u64, &mut part);
            assert!(part == wanted, "{} from {start}, {len} bytes", file.name);
        }
        let theirs = safetensors::SafeTensors::deserialize(&whole).unwrap();
        for (name, view) in theirs.iter() {
            read.insert(name.to_owned(), view.data().to_vec());
        }
    }
    assert_eq!(read.len(), synth.tensors().len());
    for tensor in synth.tensors() {
        let mut bytes = vec![0; tensor.bytes() as usize];
        // In pieces of a length that divides nothing.
        for (i, piece) in bytes.chunks_mut(1001).enumerate() {
            tensor.fill(1001 * i as u64, piece);
        }
        assert!(read[&tensor.name] == bytes, "{}", tensor.name);
    }
}

#[test]
fn bytes_stay_what_they_are() {
    // Of seed 0: a change here is another model for everyone who has written one down by its seed.
    let synth = Synth::new(Preset::named("qwen3.6-35b-a3b").unwrap(), 0).unwrap();
    let digest = |tensor: &SynthTensor| {
        let mut bytes = [0; 64];
        tensor.fill(0, &mut bytes);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let all = synth.tensors().iter().fold(0, |sum: u64, tensor| sum.rotate_left(1) ^ digest(tensor));
    assert_eq!(all, 0x92c4_b27e_aaea_403b, "{all:#x}");
}

/// Mean and standard deviation.
fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    values.for_each(|x| (n, sum, squares) = (n + 1.0, sum + x, squares + x * x));
    (sum / n, (squares / n - (sum / n).powi(2)).sqrt())
}

#[test]
fn weights_have_the_mean_and_the_deviation_of_their_gain() {
    for (bits, group) in [(2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 32)] {
        let preset = Preset { format: crate::Format { bits, group }, ..small() };
        let synth = Synth::new(preset, 9).unwrap();
        let weights = synth.weights();
        let moe = &weights.layers[1].moe;
        for (matrix, gain) in [(&weights.lm_head, 2.5), (&moe.up, 1.0), (&moe.router, 2.0), (&moe.down, 0.75)]
        {
            let (mean, deviation) = moments(dequantized(&synth, matrix).into_iter());
            let wanted = gain / (matrix.cols as f64).sqrt();
            assert!(mean.abs() < 0.05 * wanted, "{bits} bits: mean {mean}, deviation {wanted}");
            assert!((0.95..1.08).contains(&(deviation / wanted)), "{bits} bits: {deviation} for {wanted}");
        }
        let (mean, deviation) = moments(plain(&synth, &weights.final_norm).into_iter());
        assert!((mean - 1.0).abs() < 0.05 && (0.07..0.13).contains(&deviation), "norm {mean} {deviation}");
    }
}

fn bytes(synth: &Synth, id: TensorId) -> Vec<u8> {
    let tensor = synth.tensor(id).unwrap();
    let mut bytes = vec![0; tensor.bytes() as usize];
    tensor.fill(0, &mut bytes);
    bytes
}

fn plain(synth: &Synth, vector: &PlainTensor) -> Vec<f64> {
    assert!(!vector.is_f32);
    let bytes = bytes(synth, vector.tensor);
    let bits = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    bits.map(|bits| f64::from(lily_kernels::bf16_to_f32(bits))).collect()
}

fn dequantized(synth: &Synth, matrix: &QuantizedMatrix) -> Vec<f64> {
    let len = matrix.experts * matrix.rows * matrix.cols / matrix.group;
    let part = |id| plain(synth, &PlainTensor { tensor: id, is_f32: false, len });
    let (codes, scales, biases) = (bytes(synth, matrix.weight), part(matrix.scales), part(matrix.biases));
    let code = |i: usize| {
        let bit = i * matrix.bits;
        let two = u16::from(codes[bit / 8]) | u16::from(codes.get(bit / 8 + 1).copied().unwrap_or(0)) << 8;
        f64::from((two >> (bit % 8)) & ((1 << matrix.bits) - 1))
    };
    (0..len * matrix.group).map(|i| scales[i / matrix.group] * code(i) + biases[i / matrix.group]).collect()
}

#[test]
fn cancelling_and_failing_leave_nothing_behind() {
    let synth = Synth::new(small(), 1).unwrap();
    let files = synth.files(&[1], 100_000);
    let folder = tempfile::tempdir().unwrap();
    let (out, asked) = (folder.path().join("new"), AtomicU64::new(0));
    let cancelled = || asked.fetch_add(1, Ordering::Relaxed) >= 3;
    assert_eq!(
        files.write(claim(&out), 2, Progress { cancelled: &cancelled, ..SILENT }).unwrap(),
        Written::Cancelled
    );
    assert!(!out.exists());
    let above = folder.path().join("n1");
    assert_eq!(
        files.write(claim(&above.join("n2/n3")), 2, Progress { cancelled: &|| true, ..SILENT }).unwrap(),
        Written::Cancelled
    );
    assert!(!above.exists(), "the folders above are left");
    // What came since the folder was claimed is looked at too, before the old model is taken away.
    files.write(claim(&out), 2, SILENT).unwrap();
    let claimed = claim(&out);
    fs::create_dir(out.join("tokenizer.json")).unwrap();
    let error = files.write(claimed, 2, SILENT).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is not a file"), "{error}");
    fs::remove_dir(out.join("tokenizer.json")).unwrap();
    assert_eq!(contents(&out).len(), files.shards.len() + files.documents.len());
    Model::open(&out).unwrap();
}

#[test]
fn streamed_files_are_cancelled_and_counted() {
    #[derive(Debug)]
    struct Zeros(u64);
    impl Streamed for Zeros {
        fn bytes(&self) -> u64 {
            self.0
        }
        fn write_to(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
            (0..self.0).try_for_each(|_| out.write_all(&[0]))
        }
    }
    let synth = Synth::new(small(), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new");
    let mut files = synth.files(&[1], u64::MAX);
    files.streamed.push(("zeros".to_owned(), Box::new(Zeros(1 << 60))));
    let asked = AtomicU64::new(0);
    let cancelled = || asked.fetch_add(1, Ordering::Relaxed) >= 1;
    let ended = files.write(claim(&out), 1, Progress { cancelled: &cancelled, ..SILENT }).unwrap();
    assert!(ended == Written::Cancelled && !out.exists());
    files.streamed[0].1 = Box::new(Zeros(1 << 20));
    let counted = AtomicU64::new(0);
    let written = |bytes| {
        counted.fetch_add(bytes, Ordering::Relaxed);
    };
    files.write(claim(&out), 1, Progress { written: &written, ..SILENT }).unwrap();
    assert_eq!(counted.into_inner(), files.bytes());
    assert_eq!(contents(&out)["zeros"], vec![0; 1 << 20]);
}

#[test]
fn an_older_model_is_replaced_and_other_files_stay() {
    let synth = Synth::new(small(), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    synth.files(&[1], 100_000).write(claim(out), 2, SILENT).unwrap();
    fs::write(out.join("notes.txt"), "mine").unwrap();
    fs::write(out.join("model.safetensors.lily-partial"), "of a run that was killed").unwrap();
    for of_the_old in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json"] {
        fs::write(out.join(of_the_old), "{}").unwrap();
    }
    let files = synth.files(&[2], u64::MAX);
    files.write(claim(out), 2, SILENT).unwrap();
    assert_eq!(names(out), ["config.json", "generation_config.json", "model.safetensors", "notes.txt"]);
    assert_eq!(Model::open(out).unwrap().end_tokens, [2]);
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = contents(folder).into_keys().collect();
    names.sort();
    names
}

#[test]
fn one_run_at_a_time_has_a_folder() {
    let synth = Synth::new(small(), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("above/out");
    let first = claim(&out);
    fs::write(out.join("config.json.lily-partial"), "of the live run").unwrap();
    for replace in [false, true] {
        let error = SynthFolder::claim(&out, replace).unwrap_err();
        assert!(matches!(&error, FolderError::Busy(path) if *path == out), "{error}");
    }
    assert!(out.join("config.json.lily-partial").exists());
    fs::remove_file(out.join("config.json.lily-partial")).unwrap();
    drop(first);
    assert!(!folder.path().join("above").exists());
    // Many that come and go, some cancelled, which takes the folder from under the others.
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (out, won) = (&out, &won);
            scope.spawn(move || {
                let synth = Synth::new(small(), seed).unwrap();
                let files = synth.files(&[seed as u32], 200_000);
                for i in 0..25 {
                    let claimed = match SynthFolder::claim(out, true) {
                        Ok(claimed) => claimed,
                        Err(FolderError::Busy(_)) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let progress = Progress { cancelled: &|| i % 3 == 0, ..SILENT };
                    files.write(claimed, 1, progress).unwrap();
                    won.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(won.into_inner() > 0);
    synth.files(&[1], 200_000).write(claim(&out), 1, SILENT).unwrap();
    let alone = folder.path().join("alone");
    synth.files(&[1], 200_000).write(claim(&alone), 1, SILENT).unwrap();
    assert_eq!(contents(&out), contents(&alone));
}

#[test]
fn what_a_killed_run_left_is_taken_away() {
    let synth = Synth::new(small(), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let left = |files: &[&str]| files.iter().for_each(|name| fs::write(out.join(name), "left").unwrap());
    let claims = || SynthFolder::claim(out, false).map(drop);
    // Killed while it wrote, and between its renames.
    left(&[".lily-synth.lock", "model-00001-of-00002.safetensors.lily-partial", "config.json.lily-partial"]);
    claims().unwrap();
    assert!(contents(out).is_empty(), "{:?}", names(out));
    left(&["model-00001-of-00002.safetensors", "tokenizer.json", "config.json.lily-partial"]);
    claims().unwrap();
    assert!(contents(out).is_empty(), "{:?}", names(out));
    // A model, something else, and weights alone are not ours to take.
    for files in [
        &["config.json", "model.safetensors.lily-partial"][..],
        &["notes.txt", "config.json.lily-partial"],
        &["model.safetensors"],
    ] {
        left(files);
        let error = claims().unwrap_err();
        assert!(matches!(error, FolderError::NotEmpty { .. }), "{error}");
        assert_eq!(names(out).len(), files.len());
        files.iter().for_each(|name| fs::remove_file(out.join(name)).unwrap());
    }
    // With force they stay until the new files are complete.
    left(&["config.json", "model.safetensors", "notes.txt", "model.safetensors.lily-partial"]);
    drop(SynthFolder::claim(out, true).unwrap());
    assert_eq!(names(out), ["config.json", "model.safetensors", "notes.txt"]);
    synth.files(&[1], u64::MAX).write(claim(out), 1, SILENT).unwrap();
    Model::open(out).unwrap();
}

#[test]
fn a_folder_where_a_file_goes_is_refused_before_anything_is_removed() {
    let synth = Synth::new(small(), 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    synth.files(&[1], u64::MAX).write(claim(out), 1, SILENT).unwrap();
    for name in ["tokenizer.json", "merges.txt", "model-00001-of-00009.safetensors", "x.lily-partial"] {
        fs::create_dir(out.join(name)).unwrap();
        let error = SynthFolder::claim(out, true).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("is not a file"), "{error}");
        fs::remove_dir(out.join(name)).unwrap();
        assert_eq!(names(out), ["config.json", "generation_config.json", "model.safetensors"]);
    }
}

#[cfg(unix)]
#[test]
fn links_and_files_in_the_way_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (link, file) = (folder.path().join("link"), folder.path().join("file"));
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    fs::write(&file, "").unwrap();
    for out in [link.clone(), link.join("below")] {
        let error = SynthFolder::claim(&out, false).unwrap_err();
        assert!(matches!(&error, FolderError::DanglingLink(path) if *path == link), "{error}");
    }
    for out in [file.clone(), file.join("below")] {
        let error = SynthFolder::claim(&out, false).unwrap_err();
        assert!(matches!(&error, FolderError::NotAFolder(path) if *path == file), "{error}");
    }
    // The folder that a link points to is one.
    fs::create_dir(folder.path().join("nothing")).unwrap();
    drop(SynthFolder::claim(&link, false).unwrap());
    assert!(link.is_symlink());
}

/// The busiest expert's share of tokens over the mean, the largest of all layers and their mean.
fn skew(routing: Routing) -> (f64, f64) {
    let mut preset = small();
    (preset.geometry.moe.experts, preset.geometry.moe.top_k, preset.geometry.moe.shared_width) = (256, 8, 64);
    let synth = Synth::with_routing(preset, 2, routing).unwrap();
    let tokens: Vec<u32> = (0..256).map(|i| (i * 2_654_435_761u64 % (1 << 32) % 700) as u32).collect();
    let loads = crate::testing::reference(&Model::random("skew", &synth, &[]), &tokens).loads;
    let of = |load: &Vec<usize>| {
        let mean = load.iter().sum::<usize>() as f64 / load.len() as f64;
        load.iter().copied().max().unwrap() as f64 / mean
    };
    let all: Vec<f64> = loads.iter().map(of).collect();
    (all.iter().copied().fold(0.0, f64::max), all.iter().sum::<f64>() / all.len() as f64)
}

#[test]
fn skewed_routing_gives_the_busiest_expert_eight_times_the_mean() {
    let (uniform, skewed) = (skew(Routing::Uniform), skew(Routing::Skewed));
    println!("uniform {uniform:?}, skewed {skewed:?}");
    // An expert has 8 of 256 tokens on average, and the busiest one happens to have more: 1.4 to 1.5 times its share with 29 busy
    // experts of 64 tokens each, some three times with 256 of 8.
    assert!(uniform.0 < 4.0, "{uniform:?}");
    assert!(skewed.0 < 13.0 && (7.0..11.5).contains(&skewed.1), "{skewed:?}");
}

#[test]
fn skewed_routing_changes_the_routers_alone_and_no_size() {
    let uniform = Synth::new(small(), 1).unwrap();
    let skewed = Synth::with_routing(small(), 1, Routing::Skewed).unwrap();
    let mut differ = 0;
    for (a, b) in uniform.tensors().iter().zip(skewed.tensors()) {
        assert_eq!((&a.name, &a.shape, a.element), (&b.name, &b.shape, b.element));
        if bytes(&uniform, a.id) != bytes(&skewed, b.id) {
            differ += 1;
            assert!(a.name.ends_with("mlp.gate.scales") || a.name.ends_with("mlp.gate.biases"), "{}", a.name);
        }
    }
    // 8 experts: a ninth of them is one at most, in some layers none
    assert!((2..=2 * uniform.weights().layers.len()).contains(&differ), "{differ}");
}
