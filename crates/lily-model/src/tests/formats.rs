//! Random checkpoints of every quantization and layout open, and each tensor gets its role.

use crate::{
    ElementType, Format, LayerKind, MixerWeights, Model,
    testing::{Spec, memory_model, model_in_memory, write_checkpoint},
};

#[test]
fn every_width_and_group_opens() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let format = Format { bits, group };
            let mut spec = Spec { format, gates: format, ..Spec::tiny() };
            spec.geometry.hidden = 128;
            spec.geometry.moe.expert_width = 128;
            let model = model_in_memory(&spec);
            let down = &model.weights.layers[0].moe.down;
            assert_eq!((down.bits, down.group), (bits, group));
            let tensors = [down.weight, down.scales, down.biases];
            let bytes: usize = tensors.iter().map(|id| model.checkpoint.bytes(*id).len()).sum();
            assert_eq!(bytes, down.bytes());
            assert_eq!(model.checkpoint.info(down.weight).shape, [6, 128, 128 * bits / 32]);
        }
    }
}

#[test]
fn formats_are_read_per_matrix() {
    let narrow = Format { bits: 3, group: 32 };
    let wide = Format { bits: 6, group: 128 };
    let spec = Spec {
        overrides: vec![
            ("switch_mlp.down_proj".to_owned(), narrow),
            ("shared_expert.down_proj".to_owned(), wide),
        ],
        ..Spec::tiny()
    };
    let model = model_in_memory(&spec);
    for layer in &model.weights.layers {
        let format = |m: &crate::QuantizedMatrix| Format { bits: m.bits, group: m.group };
        assert_eq!(format(&layer.moe.down), narrow);
        assert_eq!(format(&layer.moe.shared_down), wide);
        assert_eq!(format(&layer.moe.up), spec.format);
        assert_eq!(format(&layer.moe.router), spec.gates);
        assert_eq!(format(&layer.moe.shared_gate), spec.gates);
    }
}

#[test]
fn every_layout_opens_with_the_same_weights() {
    let plain = model_in_memory(&Spec::tiny());
    let embed = plain.checkpoint.bytes(plain.weights.embed.weight);
    for layout in 0..64 {
        let bit = |i: u32| layout >> i & 1 == 1;
        let spec = Spec {
            shards: if bit(0) { 3 } else { 1 },
            wrapped: bit(1),
            prefixed: bit(2),
            padded: bit(3),
            extras: bit(4),
            f32_vectors: bit(5),
            ..Spec::tiny()
        };
        let folder = tempfile::tempdir().unwrap();
        write_checkpoint(folder.path(), &spec).unwrap();
        let model = Model::open(folder.path()).unwrap();
        assert_eq!(model.geometry, spec.geometry);
        assert_eq!(model.end_tokens, spec.end_tokens);
        assert_eq!(model.checkpoint.files().count(), spec.shards);
        assert_eq!(model.checkpoint.bytes(model.weights.embed.weight), embed);
        assert_eq!(model.weights.final_norm.is_f32, spec.f32_vectors);
        assert_eq!(model.checkpoint.plain_f32(&model.weights.final_norm).len(), 64);
    }
}

#[test]
fn tied_embeddings_are_the_lm_head() {
    let model = model_in_memory(&Spec { tied: true, ..Spec::tiny() });
    assert_eq!(model.weights.lm_head, model.weights.embed);
    let untied = model_in_memory(&Spec::tiny());
    assert_ne!(untied.weights.lm_head.weight, untied.weights.embed.weight);
}

#[test]
fn each_role_is_the_tensor_of_its_name() {
    let model = model_in_memory(&Spec { shards: 2, ..Spec::tiny() });
    let name = |id| model.checkpoint.info(id).name.as_str();
    for (i, layer) in model.weights.layers.iter().enumerate() {
        let path = format!("language_model.model.layers.{i}.");
        let moe = &layer.moe;
        let mut roles = vec![
            (moe.router.weight, "mlp.gate.weight"),
            (moe.router.scales, "mlp.gate.scales"),
            (moe.router.biases, "mlp.gate.biases"),
            (moe.gate.weight, "mlp.switch_mlp.gate_proj.weight"),
            (moe.up.weight, "mlp.switch_mlp.up_proj.weight"),
            (moe.down.weight, "mlp.switch_mlp.down_proj.weight"),
            (moe.shared_gate_proj.weight, "mlp.shared_expert.gate_proj.weight"),
            (moe.shared_up.weight, "mlp.shared_expert.up_proj.weight"),
            (moe.shared_down.weight, "mlp.shared_expert.down_proj.weight"),
            (moe.shared_gate.weight, "mlp.shared_expert_gate.weight"),
            (layer.input_norm.tensor, "input_layernorm.weight"),
            (layer.post_norm.tensor, "post_attention_layernorm.weight"),
        ];
        match &layer.mixer {
            MixerWeights::Delta(delta) => roles.extend([
                (delta.qkv.weight, "linear_attn.in_proj_qkv.weight"),
                (delta.z.weight, "linear_attn.in_proj_z.weight"),
                (delta.a.weight, "linear_attn.in_proj_a.weight"),
                (delta.b.weight, "linear_attn.in_proj_b.weight"),
                (delta.out.weight, "linear_attn.out_proj.weight"),
                (delta.conv.tensor, "linear_attn.conv1d.weight"),
                (delta.a_log.tensor, "linear_attn.A_log"),
                (delta.dt_bias.tensor, "linear_attn.dt_bias"),
                (delta.norm.tensor, "linear_attn.norm.weight"),
            ]),
            MixerWeights::Attention(attention) => roles.extend([
                (attention.q.weight, "self_attn.q_proj.weight"),
                (attention.k.weight, "self_attn.k_proj.weight"),
                (attention.v.weight, "self_attn.v_proj.weight"),
                (attention.o.weight, "self_attn.o_proj.weight"),
                (attention.q_norm.tensor, "self_attn.q_norm.weight"),
                (attention.k_norm.tensor, "self_attn.k_norm.weight"),
            ]),
        }
        let kind = model.geometry.layers[i];
        assert_eq!(matches!(layer.mixer, MixerWeights::Attention(_)), kind == LayerKind::Attention);
        for (id, wanted) in roles {
            assert_eq!(name(id), format!("{path}{wanted}"));
        }
    }
}

#[test]
fn a_seed_is_a_model() {
    let bytes = |seed| memory_model(&Spec { seed, ..Spec::tiny() }).files[0].1.clone();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn scales_have_both_signs() {
    let model = model_in_memory(&Spec::tiny());
    let scales = model.weights.layers[0].moe.up.scales;
    assert_eq!(model.checkpoint.info(scales).element, ElementType::BF16);
    let negative = model.checkpoint.bytes(scales).chunks(2).filter(|b| b[1] & 0x80 != 0).count();
    let all = model.checkpoint.bytes(scales).len() / 2;
    assert!(negative > all / 4 && negative < all * 3 / 4, "{negative} of {all}");
}
