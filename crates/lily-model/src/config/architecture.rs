//! The model's architecture: refuses what this engine does not compute, and reads the sizes.

use serde_json::Value;

use super::fields::{Fields, shown};
use crate::{
    error::ModelError,
    geometry::{AttentionGeometry, DeltaGeometry, Geometry, LayerKind, MoeGeometry},
};

// Upper bounds, far above any real model. With them no product of sizes overflows 64 bits, so that the code that plans
// and allocates may multiply freely.
pub(crate) const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_VOCAB: usize = 1 << 24;
pub(crate) const MAX_HEADS: usize = 1 << 12;
pub(crate) const MAX_HEAD_DIM: usize = 1 << 12;
pub(crate) const MAX_LAYERS: usize = 1 << 10;
pub(crate) const MAX_EXPERTS: usize = 1 << 12;
pub(crate) const MAX_CONV_TAPS: usize = 1 << 6;
/// A token of prompt and a token of answer.
pub(crate) const MIN_CONTEXT: usize = 2;
pub(crate) const MAX_CONTEXT: usize = 1 << 24;
const _: () = assert!(usize::BITS >= 64, "sizes of a checkpoint need 64 bits");

const MODEL_TYPES: [&str; 2] = ["qwen3_5_moe", "qwen3_5_moe_text"];

/// Refuses every model that would be computed wrongly.
pub(super) fn check_supported(top: &Fields, text: &Fields) -> Result<(), ModelError> {
    let wanted = "qwen3_5_moe or qwen3_5_moe_text (Qwen3.5 and Qwen3.6 with experts)";
    let Some(found) = top.text("model_type")? else { return Err(top.missing("model_type", wanted)) };
    check_model_type(top, found, wanted)?;
    if let Some(found) = text.text("model_type")? {
        check_model_type(text, found, wanted)?;
    }
    check_experts(text)?;
    let refuse_unless = |name: &str, wanted: bool| match text.flag(name)? {
        Some(found) if found != wanted => {
            Err(text.unsupported(name, &Value::Bool(found), wanted.to_string()))
        }
        _ => Ok(()),
    };
    refuse_unless("attn_output_gate", true)?;
    refuse_unless("attention_bias", false)?;
    refuse_unless("norm_topk_prob", true)?;
    match text.get("hidden_act") {
        Some(found) if found.as_str() != Some("silu") => {
            return Err(text.unsupported("hidden_act", found, "\"silu\""));
        }
        _ => {}
    }
    match text.get("mlp_only_layers") {
        Some(found) if found.as_array().is_none_or(|list| !list.is_empty()) => {
            return Err(text.unsupported("mlp_only_layers", found, "an empty list: every layer has experts"));
        }
        _ => {}
    }
    match text.get("decoder_sparse_step") {
        Some(found) if found.as_u64() != Some(1) => {
            Err(text.unsupported("decoder_sparse_step", found, "1: every layer has experts"))
        }
        _ => Ok(()),
    }
}

fn check_model_type(fields: &Fields, found: &str, wanted: &str) -> Result<(), ModelError> {
    if MODEL_TYPES.contains(&found) {
        return Ok(());
    }
    let wanted = match found {
        "qwen3_5" | "qwen3_5_text" => "qwen3_5_moe: this is a dense sibling, without experts",
        _ => wanted,
    };
    Err(fields.unsupported("model_type", &Value::String(found.to_owned()), wanted))
}

/// A dense model under the name of the mixture.
fn check_experts(text: &Fields) -> Result<(), ModelError> {
    let wanted = "a mixture of experts: dense models are not supported";
    match text.get("num_experts") {
        Some(found) if found.as_u64() == Some(0) => Err(text.unsupported("num_experts", found, wanted)),
        None => match text.get("intermediate_size") {
            Some(found) => {
                Err(text.unsupported("intermediate_size", found, format!("num_experts, {wanted}")))
            }
            None => Ok(()),
        },
        Some(_) => Ok(()),
    }
}

/// Reads every size and checks how they relate.
pub(super) fn geometry(text: &Fields) -> Result<Geometry, ModelError> {
    let eps_wanted = "a number above 0 and below 1";
    let rms_eps = text
        .number_where("rms_norm_eps", eps_wanted, |x| x as f32 > 0.0 && x < 1.0)?
        .ok_or_else(|| text.missing("rms_norm_eps", eps_wanted))? as f32;
    Ok(Geometry {
        hidden: text.size("hidden_size", 1..=MAX_WIDTH)?,
        layers: layers(text)?,
        vocab: text.size("vocab_size", 1..=MAX_VOCAB)?,
        rms_eps,
        attention: attention(text)?,
        delta: delta(text)?,
        moe: moe(text)?,
        max_context: text.size("max_position_embeddings", MIN_CONTEXT..=MAX_CONTEXT)?,
    })
}

fn layers(text: &Fields) -> Result<Vec<LayerKind>, ModelError> {
    let count = text.size("num_hidden_layers", 1..=MAX_LAYERS)?;
    let Some(value) = text.get("layer_types") else {
        let interval = text.size_or_none("full_attention_interval", 1..=MAX_LAYERS)?.unwrap_or(4);
        return Ok((1..=count)
            .map(|i| if i % interval == 0 { LayerKind::Attention } else { LayerKind::Delta })
            .collect());
    };
    let wanted = format!("a list of {count} (num_hidden_layers) entries");
    let list = value
        .as_array()
        .filter(|list| list.len() == count)
        .ok_or_else(|| text.wrong("layer_types", value, wanted.as_str()))?;
    list.iter()
        .enumerate()
        .map(|(i, kind)| match kind.as_str() {
            Some("linear_attention") => Ok(LayerKind::Delta),
            Some("full_attention") => Ok(LayerKind::Attention),
            _ => Err(text.unsupported(
                &format!("layer_types[{i}]"),
                kind,
                "\"linear_attention\" or \"full_attention\"",
            )),
        })
        .collect()
}

fn attention(text: &Fields) -> Result<AttentionGeometry, ModelError> {
    let query_heads = text.size("num_attention_heads", 1..=MAX_HEADS)?;
    let kv_heads = text.size("num_key_value_heads", 1..=MAX_HEADS)?;
    check_multiple(text, "num_attention_heads", query_heads, "num_key_value_heads", kv_heads)?;
    let head_dim = text.size("head_dim", 1..=MAX_HEAD_DIM)?;
    let (rotary_dim, rope_theta) = rope(text, head_dim)?;
    Ok(AttentionGeometry { query_heads, kv_heads, head_dim, rotary_dim, rope_theta })
}

/// Rotary dimensions and base. Older files keep the parameters beside the other fields instead of in `rope_parameters`.
fn rope(text: &Fields, head_dim: usize) -> Result<(usize, f64), ModelError> {
    let grouped = match text.object("rope_parameters")? {
        Some(fields) => Some(fields),
        None => text.object("rope_scaling")?,
    };
    if let Some(fields) = &grouped {
        for name in ["rope_type", "type"] {
            match fields.get(name) {
                Some(found) if !matches!(found.as_str(), Some("default" | "mrope")) => {
                    return Err(fields.unsupported(
                        name,
                        found,
                        "\"default\": no scaling of the rotary frequencies",
                    ));
                }
                _ => {}
            }
        }
    }
    let grouped = grouped.as_ref().unwrap_or(text);
    let holder = |name: &str| if grouped.get(name).is_some() { grouped } else { text };
    let (name, wanted) = ("rope_theta", "a number of at least 1");
    let theta = holder(name)
        .number_where(name, wanted, |x| x >= 1.0)?
        .ok_or_else(|| grouped.missing(name, wanted))?;
    let name = "partial_rotary_factor";
    let fields = holder(name);
    let factor = fields.number_where(name, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?.unwrap_or(0.25);
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim < 2 || !rotary_dim.is_multiple_of(2) || rotary_dim > head_dim {
        return Err(fields.refused(
            name,
            format!("{factor}, so that {rotary_dim} dimensions of head_dim {head_dim} turn"),
            "an even number of dimensions, at least 2",
        ));
    }
    Ok((rotary_dim, theta))
}

fn delta(text: &Fields) -> Result<DeltaGeometry, ModelError> {
    let key_heads = text.size("linear_num_key_heads", 1..=MAX_HEADS)?;
    let value_heads = text.size("linear_num_value_heads", 1..=MAX_HEADS)?;
    check_multiple(text, "linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)?;
    Ok(DeltaGeometry {
        key_heads,
        value_heads,
        key_dim: text.size("linear_key_head_dim", 1..=MAX_HEAD_DIM)?,
        value_dim: text.size("linear_value_head_dim", 1..=MAX_HEAD_DIM)?,
        conv_taps: text.size("linear_conv_kernel_dim", 2..=MAX_CONV_TAPS)?,
    })
}

fn moe(text: &Fields) -> Result<MoeGeometry, ModelError> {
    let experts = text.size("num_experts", 1..=MAX_EXPERTS)?;
    Ok(MoeGeometry {
        experts,
        top_k: text.size("num_experts_per_tok", 1..=experts)?,
        expert_width: text.size("moe_intermediate_size", 1..=MAX_WIDTH)?,
        shared_width: text.size("shared_expert_intermediate_size", 1..=MAX_WIDTH)?,
    })
}

fn check_multiple(text: &Fields, name: &str, found: usize, of: &str, unit: usize) -> Result<(), ModelError> {
    if found.is_multiple_of(unit) {
        return Ok(());
    }
    Err(text.refused(name, shown(&Value::from(found)), format!("a multiple of {of}, {unit}")))
}
