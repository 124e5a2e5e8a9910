//! Flags of `lily synth`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::ByteSize;

/// `lily synth`.
#[derive(Debug, Args)]
#[command(after_help = "\
The folder is a model like any other, in MLX's format: its weights are random, scaled so that activations stay near 1 and \
tokens spread over all experts, and it says nonsense at the speed of a real model of its sizes. The same seed and sizes \
give the same bytes on every machine.

Files are written under unfinished names (*.lily-partial) and renamed when all are complete. Ctrl-C removes them; what a \
run that was killed has left, the next one into the same folder removes.

Examples:
  lily synth --preset layer4 --out /tmp/layer4
  lily synth --preset qwen3.6-35b-a3b --out ./true-size --seed 7
  lily synth --preset layer4 --out ./small \\
       --hidden 512 --experts 32 --vocab 4096
  lily inspect /tmp/layer4")]
pub(crate) struct SynthFlags {
    /// Sizes to start from: qwen3.6-35b-a3b (40 layers, 19.5 GB), layer4 (4 layers, a vocabulary of 32,768, 2.0 GB), layer4-fullvocab
    /// (of 248,320, 2.5 GB) or layer8 (8 layers, 32,768, 3.9 GB).
    #[arg(long, env = "LILY_PRESET", value_name = "NAME")]
    pub(crate) preset: String,
    /// The folder to write: a new or an empty one.
    #[arg(long, env = "LILY_OUT", value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Another seed is another model.
    #[arg(long, env = "LILY_SEED", value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// The most bytes of a file of weights.
    #[arg(long, env = "LILY_SHARD_SIZE", value_name = "BYTES", default_value = "5G")]
    pub(crate) shard_size: ByteSize,
    /// Threads that make and write it [default: one for each processor that this process may use].
    #[arg(long, env = "LILY_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Write into a folder that is not empty: replaces the model in it and leaves other files alone.
    #[arg(long, env = "LILY_FORCE", value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) sizes: SizeFlags,
}

/// Sizes that differ from the preset's.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Sizes, where they differ from the preset's")]
pub(crate) struct SizeFlags {
    /// Layers: three of Gated DeltaNet, one of attention, again and again.
    #[arg(long, env = "LILY_LAYERS", value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// Rows of embedding and lm_head.
    #[arg(long, env = "LILY_VOCAB", value_name = "N")]
    pub(crate) vocab: Option<usize>,
    /// Width of the residual stream.
    #[arg(long, env = "LILY_HIDDEN", value_name = "N")]
    pub(crate) hidden: Option<usize>,
    /// Experts of a layer.
    #[arg(long, env = "LILY_EXPERTS", value_name = "N")]
    pub(crate) experts: Option<usize>,
    /// Experts that a token uses.
    #[arg(long, env = "LILY_ACTIVE_EXPERTS", value_name = "N")]
    pub(crate) active_experts: Option<usize>,
    /// Width of an expert.
    #[arg(long, env = "LILY_EXPERT_WIDTH", value_name = "N")]
    pub(crate) expert_width: Option<usize>,
    /// Width of the shared expert.
    #[arg(long, env = "LILY_SHARED_WIDTH", value_name = "N")]
    pub(crate) shared_width: Option<usize>,
    /// Query heads of an attention layer.
    #[arg(long, env = "LILY_QUERY_HEADS", value_name = "N")]
    pub(crate) query_heads: Option<usize>,
    /// Its heads of keys and values.
    #[arg(long, env = "LILY_KV_HEADS", value_name = "N")]
    pub(crate) kv_heads: Option<usize>,
    /// Dimensions of its heads.
    #[arg(long, env = "LILY_HEAD_DIM", value_name = "N")]
    pub(crate) head_dim: Option<usize>,
    /// Dimensions of a head that turn with the position.
    #[arg(long, env = "LILY_ROTARY_DIM", value_name = "N")]
    pub(crate) rotary_dim: Option<usize>,
    /// Key heads of a Gated DeltaNet layer.
    #[arg(long, env = "LILY_KEY_HEADS", value_name = "N")]
    pub(crate) key_heads: Option<usize>,
    /// Its value heads.
    #[arg(long, env = "LILY_VALUE_HEADS", value_name = "N")]
    pub(crate) value_heads: Option<usize>,
    /// Dimensions of its key heads.
    #[arg(long, env = "LILY_KEY_DIM", value_name = "N")]
    pub(crate) key_dim: Option<usize>,
    /// Dimensions of its value heads.
    #[arg(long, env = "LILY_VALUE_DIM", value_name = "N")]
    pub(crate) value_dim: Option<usize>,
    /// Taps of its convolution.
    #[arg(long, env = "LILY_CONV_TAPS", value_name = "N")]
    pub(crate) conv_taps: Option<usize>,
    /// The longest context, in tokens.
    #[arg(long, env = "LILY_MAX_CONTEXT", value_name = "TOKENS")]
    pub(crate) max_context: Option<usize>,
    /// Bits of a weight: 2, 3, 4, 5, 6 or 8; those of the routers and the shared experts' gates stay 8.
    #[arg(long, env = "LILY_BITS", value_name = "N")]
    pub(crate) bits: Option<usize>,
    /// Inputs that share a scale and a bias: 32, 64 or 128; those of the routers and the gates stay 64.
    #[arg(long, env = "LILY_GROUP", value_name = "N")]
    pub(crate) group: Option<usize>,
}
