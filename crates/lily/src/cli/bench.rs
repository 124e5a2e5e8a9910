//! Flags of `lily bench`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

use super::{ModelFlags, TraceFlags, values};

/// What `lily bench` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchOutput {
    /// A table in Markdown.
    Md,
    /// One JSON object.
    Json,
    /// Comma-separated values with a head line.
    Csv,
}

/// How the states that decode starts from are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fill {
    /// By the prefill of as many tokens.
    Computed,
    /// Made up: keys, values and states of the size of real ones, in seconds at any depth.
    Synthetic,
}

impl Fill {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fill::Computed => "computed",
            Fill::Synthetic => "synthetic",
        }
    }
}

/// How a random model spreads tokens over its experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Routing {
    /// Evenly.
    #[default]
    Uniform,
    /// The busiest expert of a layer has about eight times the mean.
    Skewed,
}

impl Routing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Routing::Uniform => "uniform",
            Routing::Skewed => "skewed",
        }
    }

    pub(crate) fn of_model(self) -> lily_model::synth::Routing {
        match self {
            Routing::Uniform => lily_model::synth::Routing::Uniform,
            Routing::Skewed => lily_model::synth::Routing::Skewed,
        }
    }
}

/// Series of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sweep {
    /// Prefill and decode at ten lengths, 256 to 128K.
    Lengths,
    /// Each mechanism off beside on: in prefill at 512, 4K, 32K and 128K tokens, in decode after 256, 4K, 32K and 128K.
    Ablations,
}

/// `lily bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
pp512 is the prefill of 512 tokens into an empty sequence, in the chunks that answers use; tg128 @ d2048 is 128 decode \
steps after 2048 tokens, and only the steps are timed. Token i is i * 2654435761 mod 2^32 mod the vocabulary's size; on a GPU \
decode goes on with the tokens that it chooses (temperature 0.6, top_p 0.95, top_k 20), as the server does: on the device, with the next \
step under way, or without token-handoff by the host. \
Everything is run once to warm up, then in turn --repeat times, every second time backwards; with --sweep or --out each \
length by itself, and a mechanism off beside on.

tok/s is the median in JSON and CSV; Markdown shows the mean as well, and spread is the standard deviation of the repeats \
(0 for one). Context is the prompt's length in prefill, and the tokens before the first step in decode.

The floor is how fast the model could be here: the bytes that it cannot do without (the floor of `lily plan`; of a prompt \
each weight once) by the bandwidth that this command measures before and after (memory larger than caches, read by the \
same threads, the best pass); in prefill, if that is slower, its operations by the float32 multiply-adds that it measures, on a \
GPU by the products of tensor cores. \
A model that fits into the caches can be faster in decode.

--out keeps each figure in DIR/points.jsonl as soon as it is there, under the commit that this program was built from and \
what it was asked for: the same command goes on where it was stopped.

Examples:
  lily bench
  lily bench --model ./layer4 --prompt 128,512,2048 --depth 0,2048,16384
  lily bench --prompt 0 --depth 131072 --fill synthetic
  lily bench --prompt 0 --gen 64 --repeat 9 -o json
  lily bench --model synth:qwen3.6-35b-a3b --device cuda --gen 64 \\
       --sweep lengths --sweep ablations --out bench/runs/DATE-MACHINE
  lily bench --model synth:layer4 --device cuda --ablate gqa-pack --depth 4K
  lily bench --model synth:layer4 --routing skewed")]
pub(crate) struct BenchFlags {
    /// Lengths of prompts, whose prefill is timed; 0 leaves prefill out.
    #[arg(long, env = "LILY_PROMPT", value_name = "N,...", value_delimiter = ',', default_value = "512", value_parser = values::tokens::<0>)]
    pub(crate) prompt: Vec<u32>,
    /// Decode steps that are timed together; 0 leaves decode out.
    #[arg(id = "gen", long, env = "LILY_GEN", value_name = "N", default_value_t = 128)]
    pub(crate) steps: u32,
    /// Tokens before the first of these steps.
    #[arg(long, env = "LILY_DEPTH", value_name = "N,...", value_delimiter = ',', default_value = "0", value_parser = values::tokens::<0>)]
    pub(crate) depth: Vec<u32>,
    /// How what is before these steps is made; the report says it [default: computed, with --sweep synthetic].
    #[arg(long, env = "LILY_FILL", value_enum)]
    pub(crate) fill: Option<Fill>,
    /// Lengths and depths in place of --prompt and --depth, as far as the model and memory allow; may be given twice.
    #[arg(long, env = "LILY_SWEEP", value_enum, value_delimiter = ',')]
    pub(crate) sweep: Vec<Sweep>,
    /// Measure without this mechanism, in turn with it; may be given several times. `all` turns off every one, `lily plan --ablate
    /// list` names them. With --sweep ablations: these alone.
    #[arg(long, env = "LILY_ABLATE", value_name = "NAME", value_delimiter = ',')]
    pub(crate) ablate: Vec<String>,
    /// How a random model (--model synth:...) spreads tokens over its experts.
    #[arg(long, env = "LILY_ROUTING", value_enum, default_value = "uniform")]
    pub(crate) routing: Routing,
    /// A folder that keeps each figure, and from which those that it has are taken.
    #[arg(long, env = "LILY_OUT", value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Times that each is measured.
    #[arg(long, env = "LILY_REPEAT", value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
    /// What to print [default: md].
    #[arg(long, short, env = "LILY_OUTPUT", value_enum)]
    pub(crate) output: Option<BenchOutput>,
    /// The same as -o json, where no -o is given.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) trace: TraceFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

impl BenchFlags {
    /// How what decode starts from is made.
    pub(crate) fn fill(&self) -> Fill {
        self.fill.unwrap_or(if self.sweep.is_empty() { Fill::Computed } else { Fill::Synthetic })
    }

    /// Whether each length is measured by itself, and kept, before the next one begins.
    pub(crate) fn is_apart(&self) -> bool {
        !self.sweep.is_empty() || self.out.is_some()
    }

    /// What to print.
    pub(crate) fn output(&self) -> BenchOutput {
        self.output.unwrap_or(if self.json { BenchOutput::Json } else { BenchOutput::Md })
    }
}
