//! The fixtures and the demo model open, with the sizes and bytes that they have.

use super::{demo, fixture};
use crate::{
    AttentionGeometry, DeltaGeometry, Geometry, LayerKind, MemoryModel, MixerWeights, Model, MoeGeometry,
};

use LayerKind::{Attention, Delta};

#[test]
fn nano_has_the_sizes_of_its_config() {
    let model = Model::open(&fixture("nano")).unwrap();
    let wanted = Geometry {
        hidden: 128,
        layers: vec![Delta, Delta, Delta, Attention],
        vocab: 1040,
        rms_eps: 1e-6,
        attention: AttentionGeometry {
            query_heads: 4,
            kv_heads: 2,
            head_dim: 64,
            rotary_dim: 16,
            rope_theta: 1e6,
        },
        delta: DeltaGeometry { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 64, conv_taps: 4 },
        moe: MoeGeometry { experts: 8, top_k: 2, expert_width: 128, shared_width: 64 },
        max_context: 4096,
    };
    assert_eq!(model.geometry, wanted);
    assert_eq!(model.end_tokens, [988, 990]);
    assert_eq!(model.sampling_defaults.temperature, Some(1.0));
    assert_eq!(model.sampling_defaults.top_k, Some(20));
    assert_eq!(model.sampling_defaults.min_p, None);
    let router = &model.weights.layers[0].moe.router;
    assert_eq!((router.bits, router.group, router.experts, router.rows, router.cols), (8, 64, 1, 8, 128));
    let down = &model.weights.layers[3].moe.down;
    assert_eq!((down.bits, down.group, down.experts, down.rows, down.cols), (4, 64, 8, 128, 128));
    assert_eq!(model.checkpoint.bytes(down.weight).len(), 8 * 128 * down.row_bytes());
}

#[test]
fn micro_is_sharded_wrapped_and_unaligned() {
    let model = Model::open(&fixture("micro")).unwrap();
    assert_eq!(model.geometry.layers, [Delta, Delta, Delta, Attention, Delta, Delta, Delta, Attention]);
    assert_eq!(model.geometry.attention.rotary_dim, 64);
    assert_eq!(model.geometry.max_context, 262_144);
    // The list at the top level wins over the number in text_config.
    assert_eq!(model.end_tokens, [988, 990]);
    assert_eq!(model.checkpoint.files().count(), 2);
    assert_eq!(model.checkpoint.total_bytes(), 9_856_656);
    let vision = model.checkpoint.tensors().filter(|(_, info)| info.name.starts_with("vision_tower."));
    assert_eq!(vision.count(), 2);
    let embed = model.checkpoint.info(model.weights.embed.weight);
    assert_ne!(embed.range.start % 4, 0, "the fixture is there to have unaligned tensors");
}

#[test]
fn every_byte_comes_from_where_the_safetensors_crate_finds_it() {
    for file in ["nano/model.safetensors", "micro/model-00002-of-00002.safetensors"] {
        let path = fixture(file);
        let model = Model::open(path.parent().unwrap()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in theirs.iter() {
            let (id, info) = model.checkpoint.tensors().find(|(_, info)| info.name == name).unwrap();
            assert_eq!(info.shape, view.shape(), "{name}");
            assert_eq!(model.checkpoint.bytes(id), view.data(), "{name}");
        }
    }
}

#[test]
fn plain_tensors_become_f32() {
    let model = Model::open(&fixture("nano")).unwrap();
    let MixerWeights::Delta(delta) = &model.weights.layers[0].mixer else { panic!("layer 0 is DeltaNet") };
    assert!(delta.a_log.is_f32 && !delta.dt_bias.is_f32);
    let a_log = model.checkpoint.plain_f32(&delta.a_log);
    let bytes = model.checkpoint.bytes(delta.a_log.tensor);
    assert_eq!(a_log.len(), 4);
    assert_eq!(a_log[1].to_le_bytes(), bytes[4..8]);
    let dt_bias = model.checkpoint.plain_f32(&delta.dt_bias);
    assert_eq!(dt_bias.len(), 4);
    // The fixture draws them from -6 to -2.
    assert!(dt_bias.iter().all(|x| (-6.1..=-1.9).contains(x)), "{dt_bias:?}");
    assert_eq!(model.checkpoint.plain_f32(&delta.conv).len(), delta.conv.len);
}

#[test]
fn the_demo_opens_from_disk_and_from_memory() {
    let on_disk = Model::open(&demo()).unwrap();
    let read = |name: &str| std::fs::read(demo().join(name)).unwrap();
    let in_memory = Model::from_memory(MemoryModel {
        config_json: read("config.json").into(),
        generation_config_json: Some(read("generation_config.json").into()),
        files: vec![("model.safetensors".into(), read("model.safetensors").into())],
    })
    .unwrap();
    assert_eq!(on_disk.geometry, in_memory.geometry);
    assert_eq!(on_disk.end_tokens, [4064, 4066]);
    assert_eq!(on_disk.end_tokens, in_memory.end_tokens);
    assert_eq!(on_disk.sampling_defaults, in_memory.sampling_defaults);
    for ((id, ours), (_, theirs)) in on_disk.checkpoint.tensors().zip(in_memory.checkpoint.tensors()) {
        assert_eq!(ours, theirs);
        assert_eq!(on_disk.checkpoint.bytes(id), in_memory.checkpoint.bytes(id));
    }
}

/// Bytes that were given back are read from the file again; on Linux it shows that they had left this process's memory.
#[test]
fn bytes_that_are_given_back_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(demo()).unwrap().map(|f| f.unwrap()) {
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let model = Model::open(folder.path()).unwrap();
    let largest = model.checkpoint.tensors().max_by_key(|(_, info)| info.range.len()).unwrap().0;
    let resident = || {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let ours = maps.lines().skip_while(|l| !l.contains(&*folder.path().to_string_lossy()));
        let rss = ours.into_iter().find_map(|l| l.strip_prefix("Rss:"));
        rss.map_or(0, |rss| rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10)
    };
    let before = model.checkpoint.bytes(largest).to_vec();
    let held = resident();
    model.checkpoint.release(largest, 0..before.len());
    if cfg!(target_os = "linux") {
        let left = resident();
        assert!(
            held >= before.len() && left + before.len() <= held + (16 << 10),
            "{held} bytes, then {left}"
        );
    }
    model.checkpoint.release(largest, 1..2);
    assert!(model.checkpoint.bytes(largest) == before);
}
