//! One wrong value of `config.json` or `generation_config.json` at a time, and the exact error it gives; and the
//! unusual ones that are right.

use serde_json::{Value, json};

use super::{open_quickly, refused};
use crate::{
    LayerKind, Model, ModelError, SamplingDefaults,
    testing::{Draft, Spec},
};

/// The value at a dotted path, made where it is not there.
fn at<'a>(config: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(config, |value, key| &mut value[key])
}

/// The draft of a tiny model with the value at `path` changed; null takes a field away.
fn changed(spec: &Spec, path: &str, value: Value) -> Draft {
    let mut draft = Draft::of(spec);
    *at(&mut draft.config, path) = value;
    draft
}

fn error_of(path: &str, value: Value) -> ModelError {
    refused(changed(&Spec::tiny(), path, value).encode())
}

fn field(field: &str, found: &str, wanted: &str) -> ModelError {
    ModelError::Field {
        file: "config.json".to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

fn unsupported(field: &str, found: &str, wanted: &str) -> ModelError {
    ModelError::Unsupported {
        file: "config.json".to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    }
}

#[test]
fn sizes_are_there_and_bounded() {
    for (name, range) in [
        ("hidden_size", "1 to 1048576"),
        ("num_hidden_layers", "1 to 1024"),
        ("vocab_size", "1 to 16777216"),
        ("max_position_embeddings", "2 to 16777216"),
        ("num_attention_heads", "1 to 4096"),
        ("num_key_value_heads", "1 to 4096"),
        ("head_dim", "1 to 4096"),
        ("linear_num_key_heads", "1 to 4096"),
        ("linear_num_value_heads", "1 to 4096"),
        ("linear_key_head_dim", "1 to 4096"),
        ("linear_value_head_dim", "1 to 4096"),
        ("linear_conv_kernel_dim", "2 to 64"),
        ("num_experts_per_tok", "1 to 6"),
        ("moe_intermediate_size", "1 to 1048576"),
        ("shared_expert_intermediate_size", "1 to 1048576"),
    ] {
        let wanted = format!("a whole number from {range}");
        let missing = ModelError::MissingField {
            file: "config.json".to_owned(),
            field: name.to_owned(),
            wanted: wanted.clone(),
        };
        assert_eq!(error_of(name, Value::Null), missing, "{name}");
        let past = range.split(' ').next_back().unwrap().parse::<u64>().unwrap() + 1;
        for (value, shown) in [
            (json!(0), "0".to_owned()),
            (json!(-1), "-1".to_owned()),
            (json!(1.5), "1.5".to_owned()),
            (json!("64"), "\"64\"".to_owned()),
            (json!([64]), "a list of 1".to_owned()),
            (json!({}), "an object of 0 fields".to_owned()),
            (json!(true), "true".to_owned()),
            (json!(u64::MAX), u64::MAX.to_string()),
            (json!(past), past.to_string()),
        ] {
            assert_eq!(error_of(name, value), field(name, &shown, &wanted), "{name}");
        }
        // The same within the wrapper, under its longer name.
        let path = format!("text_config.{name}");
        let error = refused(changed(&Spec { wrapped: true, ..Spec::tiny() }, &path, json!(0)).encode());
        assert_eq!(error, field(&path, "0", &wanted), "{name}");
    }
}

#[test]
fn sizes_fit_each_other() {
    assert_eq!(
        error_of("num_attention_heads", json!(3)),
        field("num_attention_heads", "3", "a multiple of num_key_value_heads, 2")
    );
    assert_eq!(
        error_of("linear_num_value_heads", json!(5)),
        field("linear_num_value_heads", "5", "a multiple of linear_num_key_heads, 2")
    );
    assert_eq!(
        error_of("num_experts_per_tok", json!(7)),
        field("num_experts_per_tok", "7", "a whole number from 1 to 6")
    );
    assert_eq!(
        error_of("layer_types", json!(["linear_attention", "full_attention"])),
        field("layer_types", "a list of 2", "a list of 3 (num_hidden_layers) entries")
    );
    assert_eq!(
        error_of("hidden_size", json!(96)),
        ModelError::Group {
            file: "config.json".to_owned(),
            tensor: "model.embed_tokens".to_owned(),
            found: 96,
            group: 64
        }
    );
    for (factor, turning) in [(0.01, 0), (0.04, 1), (0.22, 7)] {
        assert_eq!(
            error_of("rope_parameters.partial_rotary_factor", json!(factor)),
            field(
                "rope_parameters.partial_rotary_factor",
                &format!("{factor}, so that {turning} dimensions of head_dim 32 turn"),
                "an even number of dimensions, at least 2"
            )
        );
    }
    for factor in [0.0, -0.25, 1.01] {
        assert_eq!(
            error_of("rope_parameters.partial_rotary_factor", json!(factor)),
            field("rope_parameters.partial_rotary_factor", &format!("{factor:?}"), "above 0 and at most 1")
        );
    }
}

#[test]
fn numbers_are_sane() {
    let eps = "a number above 0 and below 1";
    for (value, shown) in
        [(json!(0.0), "0.0"), (json!(-1e-6), "-1e-6"), (json!(1), "1"), (json!("1e-6"), "\"1e-6\"")]
    {
        assert_eq!(error_of("rms_norm_eps", value), field("rms_norm_eps", shown, eps));
    }
    // The first is above 0 as f64, but 0 as f32. Neither is shown with all its zeros.
    for value in [1e-50, 1e300] {
        let error = error_of("rms_norm_eps", json!(value));
        assert!(matches!(&error, ModelError::Field { found, .. } if found.len() < 30), "{error}");
    }
    assert!(matches!(error_of("rms_norm_eps", Value::Null), ModelError::MissingField { .. }));
    let theta = "rope_parameters.rope_theta";
    assert_eq!(error_of(theta, json!(0.5)), field(theta, "0.5", "a number of at least 1"));
    assert_eq!(
        error_of(theta, Value::Null),
        ModelError::MissingField {
            file: "config.json".to_owned(),
            field: theta.to_owned(),
            wanted: "a number of at least 1".to_owned()
        }
    );
}

#[test]
fn other_architectures_are_named() {
    let moe = "qwen3_5_moe or qwen3_5_moe_text (Qwen3.5 and Qwen3.6 with experts)";
    let dense = "qwen3_5_moe: this is a dense sibling, without experts";
    for (found, wanted) in
        [("llama", moe), ("qwen3_next", moe), ("qwen3_moe", moe), ("qwen3_5", dense), ("qwen3_5_text", dense)]
    {
        let shown = format!("\"{found}\"");
        assert_eq!(error_of("model_type", json!(found)), unsupported("model_type", &shown, wanted));
        let wrapped = Spec { wrapped: true, ..Spec::tiny() };
        for path in ["model_type", "text_config.model_type"] {
            let error = refused(changed(&wrapped, path, json!(found)).encode());
            assert_eq!(error, unsupported(path, &shown, wanted));
        }
    }
    assert!(matches!(error_of("model_type", Value::Null), ModelError::MissingField { .. }));
    assert_eq!(error_of("model_type", json!(7)), field("model_type", "7", "a string"));
    let experts = "a mixture of experts: dense models are not supported";
    assert_eq!(error_of("num_experts", json!(0)), unsupported("num_experts", "0", experts));
    let mut dense = changed(&Spec::tiny(), "num_experts", Value::Null);
    dense.config["intermediate_size"] = json!(512);
    assert_eq!(
        refused(dense.encode()),
        unsupported("intermediate_size", "512", &format!("num_experts, {experts}"))
    );
}

#[test]
fn what_would_be_computed_wrongly_is_refused() {
    for (path, value, shown, wanted) in [
        ("attn_output_gate", json!(false), "false", "true"),
        ("attention_bias", json!(true), "true", "false"),
        ("norm_topk_prob", json!(false), "false", "true"),
        ("hidden_act", json!("gelu"), "\"gelu\"", "\"silu\""),
        ("mlp_only_layers", json!([1]), "a list of 1", "an empty list: every layer has experts"),
        ("decoder_sparse_step", json!(2), "2", "1: every layer has experts"),
        (
            "rope_parameters.rope_type",
            json!("yarn"),
            "\"yarn\"",
            "\"default\": no scaling of the rotary frequencies",
        ),
        (
            "rope_parameters.type",
            json!("linear"),
            "\"linear\"",
            "\"default\": no scaling of the rotary frequencies",
        ),
    ] {
        assert_eq!(error_of(path, value), unsupported(path, shown, wanted));
    }
    let kinds = json!(["linear_attention", "sliding_attention", "linear_attention"]);
    assert_eq!(
        error_of("layer_types", kinds),
        unsupported("layer_types[1]", "\"sliding_attention\"", "\"linear_attention\" or \"full_attention\"")
    );
    assert_eq!(error_of("attn_output_gate", json!(1)), field("attn_output_gate", "1", "true or false"));
}

#[test]
fn quantization_is_mlx_affine() {
    let widths = "2, 3, 4, 5, 6 or 8";
    for (path, value, shown, wanted) in [
        ("quantization.mode", json!("mxfp4"), "\"mxfp4\"", "\"affine\""),
        ("quantization.mode", json!("nvfp4"), "\"nvfp4\"", "\"affine\""),
        ("quantization.bits", json!(7), "7", widths),
        ("quantization.bits", json!(16), "16", widths),
        ("quantization.bits", json!(-4), "-4", widths),
        ("quantization.bits", json!(4.5), "4.5", widths),
        ("quantization.group_size", json!(16), "16", "32, 64 or 128"),
        ("quantization.group_size", json!(256), "256", "32, 64 or 128"),
        ("quantization.quant_method", json!("fp8"), "\"fp8\"", "MLX's affine quantization"),
    ] {
        assert_eq!(error_of(path, value), unsupported(path, shown, wanted));
    }
    assert!(matches!(error_of("quantization.bits", Value::Null), ModelError::MissingField { .. }));
    assert_eq!(error_of("quantization", json!(4)), field("quantization", "4", "an object"));
    assert!(matches!(error_of("quantization", Value::Null), ModelError::NotMlx { .. }));
}

#[test]
fn overrides_are_checked_where_they_matter() {
    let path = "language_model.model.layers.1.mlp.gate";
    let with = |value: Value| {
        let mut draft = Draft::of(&Spec::tiny());
        draft.config["quantization"][path] = value;
        refused(draft.encode())
    };
    let named = |last: &str| format!("quantization.{path}{last}");
    assert_eq!(with(json!({ "bits": 7 })), unsupported(&named(".bits"), "7", "2, 3, 4, 5, 6 or 8"));
    assert_eq!(
        with(json!({ "bits": 8, "group_size": 64, "mode": "mxfp8" })),
        unsupported(&named(".mode"), "\"mxfp8\"", "\"affine\"")
    );
    assert_eq!(
        with(json!(false)),
        unsupported(&named(""), "false", "bits and group_size: every matrix must be quantized")
    );
    // Well-formed, but not what the tensor is.
    assert_eq!(
        with(json!({ "bits": 4, "group_size": 64 })),
        ModelError::Shape {
            file: "model.safetensors".to_owned(),
            tensor: format!("{path}.weight"),
            found: vec![6, 16],
            wanted: vec![6, 8],
            because: "64 inputs at 4 bits in groups of 64, as config.json says".to_owned(),
        }
    );
    assert_eq!(
        with(json!({ "bits": 8, "group_size": 32 })),
        ModelError::Shape {
            file: "model.safetensors".to_owned(),
            tensor: format!("{path}.scales"),
            found: vec![6, 1],
            wanted: vec![6, 2],
            because: "64 inputs at 8 bits in groups of 32, as config.json says".to_owned(),
        }
    );
    // Of a tensor that is skipped, anything goes.
    let mut draft = Draft::of(&Spec { extras: true, ..Spec::tiny() });
    draft.config["quantization"]["vision_tower.blocks.0"] = json!({ "bits": 77, "mode": "other" });
    draft.config["quantization"]["language_model.mtp.fc"] = json!(false);
    open_quickly(draft.encode()).unwrap();
}

#[test]
fn overrides_may_leave_out_the_prefix_and_defaults() {
    let mut draft = Draft::of(&Spec::tiny());
    let Value::Object(quantization) = &mut draft.config["quantization"] else { panic!("an object") };
    let renamed = quantization
        .iter()
        .map(|(path, value)| {
            let mut value = value.clone();
            if let Value::Object(fields) = &mut value {
                fields.remove("group_size");
            }
            (path.trim_start_matches("language_model.").to_owned(), value)
        })
        .collect();
    *quantization = renamed;
    open_quickly(draft.encode()).unwrap();
}

#[test]
fn every_place_of_the_quantization_counts() {
    for (wrapped, from, to) in [
        (false, "quantization", "quantization_config"),
        (true, "quantization", "quantization_config"),
        (true, "quantization", "text_config.quantization"),
    ] {
        let mut draft = Draft::of(&Spec { wrapped, ..Spec::tiny() });
        let moved = draft.config[from].take();
        *at(&mut draft.config, to) = moved;
        open_quickly(draft.encode()).unwrap();
    }
    // Where both are there, the first name counts.
    open_quickly(changed(&Spec::tiny(), "quantization_config", json!({ "quant_method": "fp8" })).encode())
        .unwrap();
}

fn opened(path: &str, value: Value) -> Model {
    open_quickly(changed(&Spec::tiny(), path, value).encode())
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn switches_may_be_left_out() {
    for name in ["attn_output_gate", "attention_bias", "norm_topk_prob", "hidden_act", "tie_word_embeddings"]
    {
        opened(name, Value::Null);
    }
    opened("rope_parameters.rope_type", Value::Null);
    opened("quantization.mode", Value::Null);
    opened("decoder_sparse_step", json!(1));
    opened("mlp_only_layers", json!([]));
    let whole = opened("rope_parameters.partial_rotary_factor", Value::Null);
    assert_eq!(whole.geometry.attention.rotary_dim, 8);
    assert!(opened("eos_token_id", Value::Null).end_tokens == [1], "generation_config.json has it too");
}

#[test]
fn layer_kinds_may_come_from_the_interval() {
    let mut spec = Spec::tiny();
    spec.geometry.layers = [LayerKind::Delta, LayerKind::Attention].repeat(2);
    let mut draft = changed(&spec, "layer_types", Value::Null);
    draft.config["full_attention_interval"] = json!(2);
    assert_eq!(open_quickly(draft.encode()).unwrap().geometry, spec.geometry);
    spec.geometry.layers = vec![LayerKind::Delta, LayerKind::Delta, LayerKind::Delta, LayerKind::Attention];
    let draft = changed(&spec, "layer_types", Value::Null);
    assert_eq!(
        open_quickly(draft.encode()).unwrap().geometry,
        spec.geometry,
        "every fourth unless said otherwise"
    );
}

#[test]
fn rotary_parameters_may_stand_beside_the_other_fields() {
    let mut draft = changed(&Spec::tiny(), "rope_parameters", Value::Null);
    draft.config["rope_theta"] = json!(5000);
    draft.config["partial_rotary_factor"] = json!(0.5);
    let model = open_quickly(draft.encode()).unwrap();
    assert_eq!(model.geometry.attention.rotary_dim, 16);
    assert_eq!(model.geometry.attention.rope_theta, 5000.0);
    draft.config["rope_scaling"] = json!({ "type": "yarn", "factor": 4.0 });
    assert!(
        matches!(refused(draft.encode()), ModelError::Unsupported { field, .. } if field == "rope_scaling.type")
    );
}

#[test]
fn end_tokens_are_united() {
    let ends = |top: Value, text: Value, generation: Value| {
        let mut draft = Draft::of(&Spec { wrapped: true, ..Spec::tiny() });
        draft.config["eos_token_id"] = top;
        draft.config["text_config"]["eos_token_id"] = text;
        draft.generation_config["eos_token_id"] = generation;
        open_quickly(draft.encode()).unwrap().end_tokens
    };
    let none = || Value::Null;
    assert_eq!(ends(json!([9, 7]), json!(3), none()), [7, 9], "the top level wins over text_config");
    assert_eq!(ends(none(), json!(3), none()), [3]);
    assert_eq!(ends(none(), json!(3), json!([5, 3])), [3, 5]);
    assert_eq!(ends(json!(9), json!(3), json!(5)), [5, 9]);
    assert_eq!(ends(none(), none(), none()), [0u32; 0]);
    for (value, shown) in
        [(json!(200), "200"), (json!(-1), "-1"), (json!([1, "2"]), "\"2\""), (json!(1.0), "1.0")]
    {
        let wanted = "token ids below vocab_size, 200";
        assert_eq!(error_of("eos_token_id", value), field("eos_token_id", shown, wanted));
    }
}

#[test]
fn sampling_defaults_are_read_and_checked() {
    let read = |value: Value| {
        let mut draft = Draft::of(&Spec::tiny());
        draft.generation_config = value;
        open_quickly(draft.encode()).map(|model| model.sampling_defaults)
    };
    assert_eq!(read(json!({})).unwrap(), SamplingDefaults::default());
    assert_eq!(
        read(
            json!({ "temperature": 0.5, "top_p": 0.25, "top_k": 20, "min_p": 0.125, "repetition_penalty": 1.5,
                     "presence_penalty": -0.5, "do_sample": true, "transformers_version": "5" })
        )
        .unwrap(),
        SamplingDefaults {
            temperature: Some(0.5),
            top_p: Some(0.25),
            top_k: Some(20),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
            presence_penalty: Some(-0.5),
            do_sample: Some(true),
        }
    );
    let greedy = read(json!({ "temperature": 0.5, "do_sample": false })).unwrap();
    assert_eq!(greedy.temperature, Some(0.0));
    for (name, value) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-1)),
        ("top_k", json!(0.5)),
        ("min_p", json!(1.1)),
        ("repetition_penalty", json!(0)),
        ("presence_penalty", json!(3)),
        ("do_sample", json!("yes")),
        ("eos_token_id", json!(200)),
    ] {
        let error = read(json!({ name: value })).unwrap_err();
        assert!(
            matches!(&error, ModelError::Field { file, field, .. } if file == "generation_config.json" && field == name),
            "{name}: {error}"
        );
    }
}

#[test]
fn files_that_are_not_json_objects() {
    let encoded = Draft::of(&Spec::tiny()).encode();
    let with = |bytes: &'static [u8]| crate::MemoryModel { config_json: bytes.into(), ..encoded.clone() };
    for (bytes, problem) in [
        (&b""[..], "EOF while parsing a value at line 1 column 0"),
        (b"{", "EOF while parsing an object at line 1 column 1"),
        (b"{\"a\":1", "EOF while parsing an object at line 1 column 6"),
        (b"{} {}", "trailing characters at line 1 column 4"),
        (b"{\"a\":\"\xff\"}", "invalid unicode code point at line 1 column 7"),
        (b"[1,2]", "the file holds a list of 2; wanted an object"),
        (b"null", "the file holds null; wanted an object"),
    ] {
        let wanted = ModelError::Json { file: "config.json".to_owned(), problem: problem.to_owned() };
        assert_eq!(refused(with(bytes)), wanted);
    }
    let deep = "[".repeat(100_000).into_bytes();
    let error = refused(crate::MemoryModel { config_json: deep.into(), ..encoded.clone() });
    assert!(
        matches!(&error, ModelError::Json { problem, .. } if problem.contains("recursion limit")),
        "{error}"
    );
    let huge = vec![b' '; (2 << 20) + 1];
    assert_eq!(
        refused(crate::MemoryModel { config_json: huge.into(), ..encoded.clone() }),
        ModelError::FileTooLarge { file: "config.json".to_owned(), found: (2 << 20) + 1, limit: 2 << 20 }
    );
    let error = refused(crate::MemoryModel { generation_config_json: Some(b"{]"[..].into()), ..encoded });
    assert!(matches!(&error, ModelError::Json { file, .. } if file == "generation_config.json"), "{error}");
}
