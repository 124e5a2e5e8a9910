//! Flags of `lily eval`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{Device, ModelFlags, Precision, values};

/// `lily eval`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The tokens of a text are given to the model one after the other, whatever it would have said, and its probability of each \
next token is taken. Perplexity is exp of the mean negative logarithm of these.

With --against, a second device (or the same with another --precision) sees the same tokens in the same chunks, and is what \
the first is measured by: the KL divergence of the first's distributions from the second's (in nats, mean and largest), the \
share of positions with the same most probable token, and the largest difference of a logit over the largest logit.

Without --text: a page of text inside this program; for the demo model a conversation, since it knows no prose. A random model, and one without tokenizer.json, has no text: token i is \
then i * 2654435761 mod 2^32 mod the vocabulary's size.

Examples:
  lily eval                                     perplexity of the demo model
  lily eval --against cpu                       a GPU against the CPU
  lily eval --device cpu --against cpu          --precision fast against exact
  lily eval --model ./my-model --text book.txt --limit 2000 --json
  lily eval --against cpu --decode-from 100     decode steps as well")]
pub(crate) struct EvalFlags {
    /// Compare with this device: cpu, cuda, cuda:N or emu. With --against cpu where --device is the CPU too, that is
    /// --precision fast against exact.
    #[arg(long, env = "LILY_AGAINST", value_name = "DEVICE")]
    pub(crate) against: Option<Device>,
    /// Rounding of activations on the device of --against.
    #[arg(
        long,
        env = "LILY_AGAINST_PRECISION",
        value_enum,
        default_value = "exact",
        value_name = "PRECISION"
    )]
    pub(crate) against_precision: Precision,
    /// The text, in UTF-8 [default: a page inside this program].
    #[arg(long, env = "LILY_TEXT", value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Take so many tokens of it at most [default: all that the model's context holds; 512 where there is no text].
    #[arg(long, env = "LILY_LIMIT", value_name = "TOKENS", value_parser = values::tokens::<2>)]
    pub(crate) limit: Option<u32>,
    /// Tokens of a prefill chunk. Logits of all its positions are held, on each device.
    #[arg(long, env = "LILY_PREFILL_CHUNK", value_name = "N", default_value_t = 128, value_parser = values::tokens::<1>)]
    pub(crate) prefill_chunk: u32,
    /// Feed the tokens from this index on one at a time, through the decode plan.
    #[arg(long, env = "LILY_DECODE_FROM", value_name = "K")]
    pub(crate) decode_from: Option<usize>,
    /// Print JSON.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}
