//! A packed folder: what is in it, and what is refused.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use super::*;
use crate::device::{Layout, TensorSource};
use crate::plan::{Profile, Switches, Target};
use crate::synth::{Progress, SynthFolder, Written};
use crate::testing::{Spec, write_checkpoint};
use crate::{Model, TensorId};

fn pack(from: &Path, to: &Path) -> Model {
    let model = Model::open(from).unwrap();
    let config = fs::read(from.join("config.json")).unwrap();
    let files = files(&model, "a/model", vec![("config.json".to_owned(), config)]);
    let told = std::sync::atomic::AtomicU64::new(0);
    let progress = Progress {
        written: &|bytes| _ = told.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed),
        cancelled: &|| false,
    };
    let folder = SynthFolder::claim(to, false).unwrap();
    assert_eq!(files.write(folder, 1, progress).unwrap(), Written::All);
    assert_eq!(told.into_inner(), files.bytes());
    drop(files);
    model
}

/// A small model, and its packed form.
fn packed() -> (tempfile::TempDir, Model, Model) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&from).unwrap();
    write_checkpoint(&from, &Spec::tiny()).unwrap();
    let model = pack(&from, &to);
    let packed = Model::open(&to).unwrap();
    (folder, model, packed)
}

fn named<'a>(model: &'a Model, name: &str) -> (TensorId, &'a crate::TensorInfo) {
    model.checkpoint.tensors().find(|(_, info)| info.name == name).unwrap()
}

#[test]
fn a_packed_folder_is_a_checkpoint_of_the_same_tensors() {
    let (folder, model, packed) = packed();
    assert_eq!(packed.geometry, model.geometry);
    let mut count = 0;
    for (id, info) in model.checkpoint.tensors().filter(|(_, i)| !crate::checkpoint::is_skipped(&i.name)) {
        let (other, found) = named(&packed, &info.name);
        assert_eq!((found.element, &found.shape), (info.element, &info.shape), "{}", info.name);
        assert!(packed.checkpoint.bytes(other) == model.checkpoint.bytes(id), "{}", info.name);
        count += 1;
    }
    assert!(count > 20);
    // For others, too.
    let bytes = fs::read(folder.path().join("to/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.names().len() > count && bytes.len().is_multiple_of(PAGE));
    let manifest = Manifest::of_folder(&folder.path().join("to")).unwrap().unwrap();
    assert_eq!((manifest.source.as_str(), manifest.bytes), ("a/model", bytes.len() as u64));
    assert_eq!(manifest.source_files[0].name, "model.safetensors");
    assert_eq!(Manifest::of_folder(&folder.path().join("from")).unwrap(), None);
}

#[test]
fn every_tensor_that_a_plan_reads_is_mapped_in_pages() {
    let (_folder, model, packed) = packed();
    let (weights, packing) = packed.weights.packed();
    assert!(packing.tensors().count() > 3);
    let every = Profile::named("metal:m5-max").unwrap();
    for profile in [every.clone(), every.with_switches(Switches::NONE)] {
        let target = Target { geometry: &packed.geometry, weights: &weights, profile: &profile };
        let copied = Layout::new(target, &packed, &packing, usize::MAX).unwrap();
        for most in [usize::MAX, 100_000] {
            let (layout, blocks) = Layout::mapped(target, &packed, &packing, most).unwrap().unwrap();
            assert_eq!(layout.blocks(), blocks.iter().map(|b| b.as_slice().len()).collect::<Vec<_>>());
            assert_eq!(blocks.len() > 1, most == 100_000);
            for block in &blocks {
                assert!(block.range().start.is_multiple_of(PAGE) && block.range().len().is_multiple_of(PAGE));
            }
            let all =
                packed.checkpoint.tensors().map(|(id, _)| id).chain(packing.tensors().map(|(id, _)| id));
            for tensor in all {
                assert_eq!(layout.place(tensor).is_some(), copied.place(tensor).is_some());
                let Some(spot) = layout.place(tensor) else { continue };
                let own = [tensor];
                let parts = packing.parts(tensor).unwrap_or(&own);
                let want: Vec<u8> =
                    parts.iter().flat_map(|part| TensorSource::bytes(&packed, *part)).copied().collect();
                assert!(blocks[spot.block].as_slice()[spot.start..spot.start + spot.bytes] == want[..]);
                assert!(spot.start.is_multiple_of(PAGE));
            }
            for pair in blocks.windows(2) {
                assert!(pair[0].range().end <= pair[1].range().start, "blocks share no page");
            }
        }
        let (weights, packing) = model.weights.packed();
        let target = Target { geometry: &model.geometry, weights: &weights, profile: &profile };
        assert!(Layout::mapped(target, &model, &packing, usize::MAX).unwrap().is_none(), "as MLX writes it");
    }
}

#[test]
fn what_is_not_what_was_written_is_said_so() {
    let (folder, _, packed) = packed();
    let to = folder.path().join("to");
    let (weights, manifest) = (to.join("model.safetensors"), to.join(MANIFEST));
    let (good, text) = (fs::read(&weights).unwrap(), fs::read_to_string(&manifest).unwrap());
    let (_, norm) = named(&packed, &packed.checkpoint.info(packed.weights.final_norm.tensor).name);
    let at = norm.range.start;
    drop(packed);
    let put = |bytes: &[u8], text: &str| {
        // By another name first: the file may be mapped.
        fs::remove_file(&weights).unwrap();
        fs::write(&weights, bytes).unwrap();
        fs::write(&manifest, text).unwrap();
    };
    let refused = |words: &[&str]| {
        let error = Model::open(&to).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    };
    assert!(verify(&to, &mut |_| true).unwrap());
    assert!(!verify(&to, &mut |_| false).unwrap());

    put(&good[..good.len() - 1], &text);
    refused(&[
        "model.safetensors",
        &(good.len() - 1).to_string(),
        &good.len().to_string(),
        "not copied whole",
    ]);
    let mut other = good.clone();
    let from = other.windows(8).position(|bytes| bytes == b"\"BF16\",\"").unwrap();
    other[from..from + 6].copy_from_slice(b"\"U16 \"");
    put(&other, &text);
    refused(&["model.safetensors", "its header", "damaged"]);
    put(&good, &text.replace("\"format\": 1", "\"format\": 2"));
    refused(&[MANIFEST, "format is 2", "reads 1", "pack"]);
    put(&good, &text.replace("\"page\": 16384", "\"page\": 4096"));
    refused(&[MANIFEST, "page", "16384"]);
    put(&good, &text[..text.len() / 2]);
    refused(&[MANIFEST]);
    put(&good, "{}");
    refused(&[MANIFEST, "format is null"]);

    // A byte of a tensor is found by whoever reads all of them.
    let mut other = good.clone();
    other[at] ^= 1;
    put(&other, &text);
    Model::open(&to).unwrap();
    let error = verify(&to, &mut |_| true).unwrap_err().to_string();
    assert!(
        error.contains("bytes 0 to") && error.contains("in tensors") && error.contains("damaged"),
        "{error}"
    );
    let error = verify(&folder.path().join("from"), &mut |_| true).unwrap_err().to_string();
    assert!(error.contains(MANIFEST) && error.contains("missing"), "{error}");
}

#[test]
fn pieces_are_summed_each_by_itself() {
    use std::io::Write;
    let mut sum = file::Summed::new(std::io::sink());
    let all = vec![7u8; PIECE as usize + 5];
    sum.write_all(&all).unwrap();
    let sums = sum.finish();
    assert_eq!(sums.len(), 2);
    let mut last = file::Summed::new(std::io::sink());
    last.write_all(&[7; 5]).unwrap();
    assert_eq!(sums[1], last.finish()[0]);
}

#[test]
fn a_manifest_is_as_long_as_it_says() {
    let (folder, ..) = packed();
    let text = fs::read(folder.path().join("to").join(MANIFEST)).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["pieces_sha256"].as_array().unwrap().len(), 1);
    assert_eq!(json["pieces_sha256"][0].as_str().unwrap().len(), 64);
}
