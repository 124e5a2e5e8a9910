//! Flags of `lily bench`.

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

use super::ModelFlags;

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

/// `lily bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
pp512 is the prefill of 512 tokens into an empty sequence, in the chunks that answers use; tg128 @ d2048 is 128 decode \
steps after 2048 tokens, and only the steps are timed. Token i is i * 2654435761 mod 2^32 mod the vocabulary's size. \
Everything is run once to warm up, then in turn --repeat times, every second time backwards.

tok/s is the median in JSON and CSV; Markdown shows the mean as well, and spread is the standard deviation of the repeats \
(0 for one). Context is the prompt's length in prefill, and the tokens before the first step in decode.

The floor is how fast the model could be here: the bytes that it cannot do without (the floor of `lily plan`; of a prompt \
each weight once) by the bandwidth that this command measures before and after (memory larger than caches, read by the \
same threads, the best pass); in prefill, if that is slower, its operations by the float32 multiply-adds that it measures, on a \
GPU by the products of tensor cores. \
A model that fits into the caches can be faster in decode.

Examples:
  lily bench
  lily bench --model ./layer4 --prompt 128,512,2048 --depth 0,2048,16384
  lily bench --prompt 0 --depth 131072 --fill synthetic
  lily bench --prompt 0 --gen 64 --repeat 9 -o json")]
pub(crate) struct BenchFlags {
    /// Lengths of prompts, whose prefill is timed; 0 leaves prefill out.
    #[arg(long, env = "LILY_PROMPT", value_name = "N,...", value_delimiter = ',', default_value = "512")]
    pub(crate) prompt: Vec<u32>,
    /// Decode steps that are timed together; 0 leaves decode out.
    #[arg(id = "gen", long, env = "LILY_GEN", value_name = "N", default_value_t = 128)]
    pub(crate) steps: u32,
    /// Tokens before the first of these steps.
    #[arg(long, env = "LILY_DEPTH", value_name = "N,...", value_delimiter = ',', default_value = "0")]
    pub(crate) depth: Vec<u32>,
    /// How what is before these steps is made; the report says it.
    #[arg(long, env = "LILY_FILL", value_enum, default_value = "computed")]
    pub(crate) fill: Fill,
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
    pub(crate) model: ModelFlags,
}

impl BenchFlags {
    /// What to print.
    pub(crate) fn output(&self) -> BenchOutput {
        self.output.unwrap_or(if self.json { BenchOutput::Json } else { BenchOutput::Md })
    }
}
