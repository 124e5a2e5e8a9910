//! `lily inspect`: what a model is and what it costs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use lily_model::inspect::Inspection;

use crate::cli::InspectFlags;
use crate::setup::{load_weights, readable};

pub(crate) fn run(flags: &InspectFlags) -> Result<ExitCode> {
    let (model, name) = load_weights(flags.named()?)?;
    let context = flags.context.map_or(model.geometry.max_context, |c| c as usize);
    let inspection = Inspection::of(&model, context);
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&inspection)?)?;
    } else {
        write!(out, "{}", text(&name, &inspection))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(name: &str, i: &Inspection) -> String {
    let g = &i.geometry;
    let size = |bytes: u64| readable(usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut lines = vec![
        format!("{name}"),
        format!(
            "  layers       {} ({} Gated DeltaNet, {} attention), width {}, vocabulary {}, context {}",
            g.num_hidden_layers,
            g.linear_attention_layers,
            g.full_attention_layers,
            g.hidden_size,
            g.vocab_size,
            g.max_position_embeddings
        ),
        format!(
            "  attention    {} query heads, {} KV heads of {}, {} rotary, theta {}",
            g.num_attention_heads, g.num_key_value_heads, g.head_dim, g.rotary_dim, g.rope_theta
        ),
        format!(
            "  DeltaNet     {} key heads of {}, {} value heads of {}, {} taps",
            g.linear_num_key_heads,
            g.linear_key_head_dim,
            g.linear_num_value_heads,
            g.linear_value_head_dim,
            g.linear_conv_kernel_dim
        ),
        format!(
            "  experts      {}, {} active, width {}; shared expert width {}",
            g.num_experts, g.num_experts_per_tok, g.moe_intermediate_size, g.shared_expert_intermediate_size
        ),
        format!("  parameters   {} ({} active)", millions(i.parameters.total), millions(i.parameters.active)),
        format!(
            "  formats      {}",
            i.quantization
                .iter()
                .map(|f| format!("{} bits, group {}: {} matrices", f.bits, f.group_size, f.matrices))
                .collect::<Vec<_>>()
                .join("; ")
        ),
        format!("  end tokens   {:?}", i.end_tokens),
        String::new(),
        format!("  {:<22} {:>12} {:>16}", "part", "in memory", "read per token"),
    ];
    for part in &i.parts {
        let label = serde_json::to_value(part.name).ok();
        let label = label.as_ref().and_then(|v| v.as_str()).unwrap_or("?").replace('_', " ");
        lines.push(format!("  {label:<22} {:>12} {:>16}", size(part.bytes), size(part.bytes_per_token)));
    }
    let t = &i.token;
    lines.extend([
        String::new(),
        format!(
            "  a generated token moves {} of weights, {} of state and {} for each token of context",
            size(t.weights),
            size(t.delta_state + t.conv_state),
            size(t.kv_per_context_token)
        ),
        format!(
            "  at {} tokens of context: {} of weights + {} of keys and values + {} of state = {}",
            i.memory.context,
            size(i.memory.weights),
            size(i.memory.kv),
            size(i.memory.state),
            size(i.memory.total)
        ),
    ]);
    lines.join("\n") + "\n"
}

fn millions(n: u64) -> String {
    if n >= 1_000_000_000 {
        format!("{:.2} billion", n as f64 / 1e9)
    } else {
        format!("{:.1} million", n as f64 / 1e6)
    }
}
