//! Writing what the reader of this module reads: sizes and formats as fields of `config.json`.

use serde_json::{Value, json};

use super::Format;
use crate::geometry::{Geometry, LayerKind};

/// The fields that give the sizes and name the architecture (`text_config`, or a plain config). Quantization and end
/// tokens are not among them.
pub(crate) fn architecture(sizes: &Geometry) -> Value {
    let (attention, delta, moe) = (&sizes.attention, &sizes.delta, &sizes.moe);
    let layer_types: Vec<&str> = sizes
        .layers
        .iter()
        .map(|kind| match kind {
            LayerKind::Delta => "linear_attention",
            LayerKind::Attention => "full_attention",
        })
        .collect();
    json!({
        "model_type": "qwen3_5_moe_text",
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers.len(),
        "layer_types": layer_types,
        "vocab_size": sizes.vocab,
        // As a decimal number and not as the f32 widened, which would read 9.999999974752427e-7.
        "rms_norm_eps": sizes.rms_eps.to_string().parse::<f64>().unwrap_or_default(),
        "max_position_embeddings": sizes.max_context,
        "num_attention_heads": attention.query_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": attention.rope_theta,
            "partial_rotary_factor": rotary_factor(attention.rotary_dim, attention.head_dim),
        },
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv_taps,
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_width,
        "shared_expert_intermediate_size": moe.shared_width,
        "hidden_act": "silu",
        "attn_output_gate": true,
        "attention_bias": false,
        "norm_topk_prob": true,
    })
}

/// A share of a head's dimensions that, times their number and rounded down, is `rotary_dim` again.
fn rotary_factor(rotary_dim: usize, head_dim: usize) -> f64 {
    let factor = rotary_dim as f64 / head_dim as f64;
    if (head_dim as f64 * factor) as usize == rotary_dim { factor } else { factor.next_up() }
}

/// The field `quantization`: one format for all matrices but those at the given paths, which are written as they are.
pub(crate) fn quantization(default: Format, exceptions: impl Iterator<Item = (String, Format)>) -> Value {
    let shown = |format: Format| json!({ "group_size": format.group, "bits": format.bits });
    let mut quantization = shown(default);
    quantization["mode"] = "affine".into();
    for (path, format) in exceptions.filter(|(_, format)| *format != default) {
        quantization[path] = shown(format);
    }
    quantization
}

#[cfg(test)]
mod tests {
    use super::rotary_factor;

    #[test]
    fn every_rotary_dimension_is_read_back() {
        for head_dim in 1..=512 {
            for rotary in 1..=head_dim {
                assert_eq!((head_dim as f64 * rotary_factor(rotary, head_dim)) as usize, rotary);
            }
        }
    }
}
