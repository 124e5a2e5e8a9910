//! What people may type. Every flag is also an environment variable, `LILY_` and the flag's name; a test holds that.

mod bench;
mod eval;
mod metal;
mod pack;
mod serve;
mod synth;
mod trace;
mod values;

use std::path::PathBuf;

use clap::builder::{BoolishValueParser, OsStr, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub(crate) use bench::{BenchFlags, BenchOutput, Fill, Routing, Sweep};
pub(crate) use eval::EvalFlags;
pub(crate) use metal::{MetalFlags, MetalQueue};
pub(crate) use pack::PackFlags;
pub(crate) use serve::{PsFlags, ServeFlags};
pub(crate) use synth::{SizeFlags, SynthFlags};
pub(crate) use trace::TraceFlags;
pub(crate) use values::{ByteSize, Device, OnOff, Phase, Precision, Seed};

/// A local inference engine for Qwen3.6-35B-A3B.
///
/// Runs a built-in demo model when no --model is given.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  lily run \"What is the capital of Japan?\"    one answer
  lily chat                                   a conversation
  lily serve                                  an OpenAI-compatible server
  lily inspect ./Qwen3.6-35B-A3B-4bit         sizes, bytes per token, memory

Every flag is also an environment variable (--max-tokens is LILY_MAX_TOKENS); an empty one counts as none."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What was typed. Wrong usage ends the program here, with a message.
pub(crate) fn parse() -> Cli {
    let matches = command(|name| std::env::var_os(name)).get_matches();
    read(&matches).unwrap_or_else(|error| error.exit())
}

fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Plan(flags), Some(plan)) = (&mut cli.command, matches.subcommand_matches("plan")) {
        let typed = |flag| plan.value_source(flag) == Some(ValueSource::CommandLine);
        flags.one_model(typed("preset"), typed("model"))?;
    }
    Ok(cli)
}

/// The command line, in which a variable that is empty counts as none: scripts and container files set variables to
/// nothing when they mean to leave them out.
fn command(variable: impl Fn(&std::ffi::OsStr) -> Option<std::ffi::OsString>) -> clap::Command {
    let is_empty = |name: &std::ffi::OsStr| variable(name).is_some_and(|value| value.is_empty());
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|flag| {
            // A value out of range is to be told so, and not taken for a flag that is not known.
            let negative = !flag.is_positional() && flag.get_action().takes_values();
            let flag = if negative { flag.allow_negative_numbers(true) } else { flag };
            match flag.get_env() {
                Some(name) if is_empty(name) => flag.env(Resettable::<OsStr>::Reset),
                _ => flag,
            }
        })
    })
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt.
    Run(RunFlags),
    /// Hold a conversation in the terminal.
    Chat(ChatFlags),
    /// Serve the OpenAI-compatible API.
    Serve(ServeFlags),
    /// List the servers of this user that run now.
    Ps(PsFlags),
    /// Show a model's geometry, sizes, bytes per token and memory.
    Inspect(InspectFlags),
    /// Say what this machine can run, and why not.
    Doctor(DoctorFlags),
    /// Write the logits of given tokens to a file.
    Logits(LogitsFlags),
    /// Show what a device would launch: stages, bytes against the floor, operations.
    Plan(PlanFlags),
    /// Write a random model of true size, to measure with.
    Synth(SynthFlags),
    /// Write a model in a form that the GPU of a Mac uses without a copy.
    Pack(PackFlags),
    /// Measure how fast a model reads prompts and answers, against what memory and arithmetic allow.
    Bench(BenchFlags),
    /// Measure how well a model foretells a text, and how far two devices are apart.
    Eval(EvalFlags),
}

/// Which model, on what. A heading holds for all flags after it: commands name their own flags before these groups.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model and device")]
pub(crate) struct ModelFlags {
    /// A model folder, ORG/NAME in the Hugging Face cache, or `synth:PRESET` (`synth:PRESET:SEED`), the random model that `lily synth` writes, without
    /// its files [default: the built-in demo model].
    #[arg(long, env = "LILY_MODEL", value_name = "MODEL", value_parser = values::model)]
    pub(crate) model: Option<String>,
    /// What to compute on: auto (a GPU that holds the model, else the processor), cpu, metal (the GPU of a Mac), cuda or cuda:N (NVIDIA GPU
    /// number N), emu (the kernels of GPUs, emulated on the processor: for tests, very slow, in builds with `--features emu`).
    #[arg(long, env = "LILY_DEVICE", value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: Device,
    /// Threads of the device, if it is the CPU or the emulator [default: one for each processor that this process may use].
    #[arg(long, env = "LILY_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Rounding of activations [default: fast on the CPU, bf16 on a GPU; exact for `lily logits` and on the emulator].
    #[arg(long, env = "LILY_PRECISION", value_enum)]
    pub(crate) precision: Option<Precision>,
    /// Instruction set of the CPU device, for comparisons [default: the best that this processor has].
    #[arg(long, env = "LILY_ISA", value_name = "SET", value_parser = values::isa)]
    pub(crate) isa: Option<lily_cpu::Isa>,
    /// Kernels of an NVIDIA GPU, for comparisons: native (its own where they win, the default), or shared (the texts of all GPUs).
    #[arg(long, env = "LILY_KERNELS", value_enum)]
    pub(crate) kernels: Option<Kernels>,
    #[command(flatten)]
    pub(crate) metal: MetalFlags,
}

/// Which kernels a GPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kernels {
    /// The GPU's own where they win.
    Native,
    /// The texts that all GPUs share.
    Shared,
}

/// Room for tokens and state.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryFlags {
    /// Tokens that a prompt and its answer may have together [default: the model's limit, or what memory allows].
    #[arg(long, env = "LILY_CONTEXT", value_name = "TOKENS", value_parser = values::tokens::<2>)]
    pub(crate) context: Option<u32>,
    /// Memory for states of earlier prompts, so that a conversation's next turn starts where it can; 0 turns reuse off
    /// [default: a quarter of what is left beside the model, at most 4G].
    #[arg(long, env = "LILY_CACHE_MEMORY", value_name = "BYTES")]
    pub(crate) cache_memory: Option<ByteSize>,
}

/// How the next token is chosen. Defaults are the model's own (generation_config.json).
#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
pub(crate) struct SamplingFlags {
    /// 0 always takes the most probable token.
    #[arg(long, env = "LILY_TEMPERATURE", value_name = "0..2", value_parser = values::temperature)]
    pub(crate) temperature: Option<f32>,
    /// Keep the most probable tokens that sum to this probability.
    #[arg(long, env = "LILY_TOP_P", value_name = "0..1", value_parser = values::top_p)]
    pub(crate) top_p: Option<f32>,
    /// Keep this many of the most probable tokens; 0 keeps all.
    #[arg(long, env = "LILY_TOP_K", value_name = "N")]
    pub(crate) top_k: Option<u32>,
    /// Drop tokens below this share of the most probable one.
    #[arg(long, env = "LILY_MIN_P", value_name = "0..1", value_parser = values::share)]
    pub(crate) min_p: Option<f32>,
    /// Above 1 discourages tokens that occurred.
    #[arg(long, env = "LILY_REPETITION_PENALTY", value_name = "X", value_parser = values::repetition)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Lowers tokens that occurred in the answer, once.
    #[arg(long, env = "LILY_PRESENCE_PENALTY", value_name = "-2..2", value_parser = values::penalty)]
    pub(crate) presence_penalty: Option<f32>,
    /// Lowers tokens for each time they occurred in the answer.
    #[arg(long, env = "LILY_FREQUENCY_PENALTY", value_name = "-2..2", value_parser = values::penalty)]
    pub(crate) frequency_penalty: Option<f32>,
    /// The same seed and prompt give the same answer [default: a random one, as -1 is].
    #[arg(long, env = "LILY_SEED", value_name = "N")]
    pub(crate) seed: Option<Seed>,
    /// The most tokens of an answer [default: the rest of the context].
    #[arg(long, env = "LILY_MAX_TOKENS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Text that ends an answer; may be given several times.
    #[arg(long, env = "LILY_STOP", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
    /// Whether the model thinks before it answers [default: the template's].
    #[arg(long, env = "LILY_THINKING", value_enum)]
    pub(crate) thinking: Option<OnOff>,
    /// An instruction for the whole conversation.
    #[arg(long, env = "LILY_SYSTEM", value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// `lily run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The answer goes to standard output; reasoning and figures go to standard error. Text piped in is appended to the \
prompt, or is the prompt where none is given; with - as the prompt's last word, lily waits for it however long it takes.

Examples:
  lily run \"What is the capital of Japan?\"
  lily run --temperature 0 --max-tokens 200 \"Write a poem about the sea.\"
  cat report.txt | lily run \"Summarize this:\"")]
pub(crate) struct RunFlags {
    /// What to ask; several words are joined by spaces.
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,
    /// Print the answer, its reasoning and its figures as one JSON object.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    /// Print nothing but the answer.
    #[arg(long, short, env = "LILY_QUIET", value_parser = BoolishValueParser::new())]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) trace: TraceFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) memory: MemoryFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
}

/// `lily chat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C stops an answer; Ctrl-D or /quit ends the chat. /help lists the commands.

Examples:
  lily chat
  lily chat --system \"Answer in one sentence.\" --thinking off")]
pub(crate) struct ChatFlags {
    #[command(flatten)]
    pub(crate) trace: TraceFlags,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) memory: MemoryFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
}

/// `lily inspect`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lily inspect
  lily inspect mlx-community/Qwen3.6-35B-A3B-4bit --context 131072
  lily inspect ./my-model --json")]
pub(crate) struct InspectFlags {
    /// A model folder, or ORG/NAME in the Hugging Face cache [default: the built-in demo model].
    #[arg(value_name = "MODEL", value_parser = values::model)]
    pub(crate) positional: Option<String>,
    /// The same, as other commands take it.
    #[arg(long, env = "LILY_MODEL", value_name = "MODEL", value_parser = values::model)]
    pub(crate) model: Option<String>,
    /// Tokens for which memory is given [default: the model's limit].
    #[arg(long, env = "LILY_CONTEXT", value_name = "TOKENS", value_parser = values::tokens::<1>)]
    pub(crate) context: Option<u32>,
    /// Print JSON.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

impl InspectFlags {
    /// The model that is named, either way. `LILY_MODEL` is only a default.
    pub(crate) fn named(&self) -> anyhow::Result<Option<&str>> {
        let from_variable = self.model.is_some() && self.model == std::env::var("LILY_MODEL").ok();
        if let (Some(one), Some(other), false) = (&self.positional, &self.model, from_variable) {
            anyhow::bail!("lily inspect shows one model, and was given {one} and --model {other}");
        }
        Ok(self.positional.as_deref().or(self.model.as_deref()))
    }
}

/// `lily doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exits 0 if any device can run a model.\n\nExamples:\n  lily doctor\n  lily doctor --json"
)]
pub(crate) struct DoctorFlags {
    /// Print JSON.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) metal: MetalFlags,
}

/// `lily logits`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
The output holds `logits` f32 [positions, vocab_size] and `positions` i32 [positions]; its metadata `prefill_chunks` \
(the lengths of the chunks, as a JSON list) and `decode_steps` say how they were made.

Examples:
  echo '[1, 2, 3, 4]' > tokens.json
  lily logits --tokens tokens.json --out logits.safetensors
  lily logits --tokens tokens.json --out logits.safetensors \\
       --model ./my-model --prefill-chunk 2 --decode-from 3")]
pub(crate) struct LogitsFlags {
    /// A JSON array of token ids.
    #[arg(long, env = "LILY_TOKENS", value_name = "FILE.json")]
    pub(crate) tokens: PathBuf,
    /// The file to write.
    #[arg(long, env = "LILY_OUT", value_name = "OUT.safetensors")]
    pub(crate) out: PathBuf,
    /// Tokens of a prefill chunk; cuts are exactly its multiples.
    #[arg(long, env = "LILY_PREFILL_CHUNK", value_name = "N", default_value_t = 512, value_parser = values::tokens::<1>)]
    pub(crate) prefill_chunk: u32,
    /// Feed the tokens from this index on one at a time, through the decode plan.
    #[arg(long, env = "LILY_DECODE_FROM", value_name = "K")]
    pub(crate) decode_from: Option<usize>,
    /// Write only the last N positions.
    #[arg(long, env = "LILY_LAST", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) last: Option<u32>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

/// `lily plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Neither weights nor a GPU are needed. Bytes count once a launch; the floor is what no plan could leave out (a decode \
step: each matrix it needs, DeltaNet states read and written, keys and values read).

Examples:
  lily plan --device metal:m5-max --phase decode --context 4096
  lily plan --device cuda:h200 --phase prefill --context 4096 --json
  lily plan --device cuda:rtx4090 --memory 24G
  lily plan --model ./my-model --device emu --phase decode --context 256
  lily plan --device metal:m5-max --phase decode --context 4096 \\
       --ablate gqa-pack --ablate block-attention
  lily plan --ablate list")]
pub(crate) struct PlanFlags {
    /// Sizes of a known model: qwen3.6-35b-a3b, layer4, layer4-fullvocab or layer8 [default: qwen3.6-35b-a3b].
    #[arg(long, env = "LILY_PRESET", value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Sizes of a model folder, or of ORG/NAME in the Hugging Face cache, in place of --preset.
    #[arg(long, env = "LILY_MODEL", value_name = "MODEL", value_parser = values::model)]
    pub(crate) model: Option<String>,
    /// The device: cpu, emu, metal:m5-max, cuda:h200 and others of their kind; auto is metal:m5-max.
    #[arg(long, env = "LILY_DEVICE", value_name = "DEVICE", default_value = "metal:m5-max")]
    pub(crate) device: String,
    /// What to plan.
    #[arg(long, env = "LILY_PHASE", value_enum, default_value = "decode")]
    pub(crate) phase: Phase,
    /// Tokens of context, the new ones among them [default: 4096, or the model's most if that is less].
    #[arg(long, env = "LILY_CONTEXT", value_name = "TOKENS", value_parser = values::tokens::<1>)]
    pub(crate) context: Option<u32>,
    /// Rows: in decode, sequences that advance together, 1 to 4; in prefill, tokens of the last chunk [default: 1; the
    /// device's chunk, or the whole context if that is shorter].
    #[arg(long, env = "LILY_ROWS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rows: Option<u32>,
    /// Say which context fits into so much memory of a GPU, or so much free memory of a machine [default: 24, 32, 48 and 80 GiB].
    #[arg(long, env = "LILY_MEMORY", value_name = "BYTES")]
    pub(crate) memory: Option<ByteSize>,
    /// Show each launch, not each kind of them.
    #[arg(long, env = "LILY_FULL", value_parser = BoolishValueParser::new())]
    pub(crate) full: bool,
    /// Turn a mechanism off; may be given several times. `all` turns off every one, `list` names them.
    #[arg(long, env = "LILY_ABLATE", value_name = "NAME", value_delimiter = ',')]
    pub(crate) ablate: Vec<String>,
    /// Print JSON.
    #[arg(long, env = "LILY_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

impl PlanFlags {
    /// Leaves one of preset and model: what was typed comes before what the environment says.
    fn one_model(&mut self, preset_typed: bool, model_typed: bool) -> Result<(), clap::Error> {
        if let (Some(preset), Some(model)) = (&self.preset, &self.model) {
            match (preset_typed, model_typed) {
                (true, false) => self.model = None,
                (false, true) => self.preset = None,
                _ => {
                    let text = format!(
                        "--preset {preset} and --model {model} both say of what sizes; give one of them"
                    );
                    return Err(Cli::command().error(ErrorKind::ArgumentConflict, text));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_of_one_model_and_what_is_typed_comes_first() {
        let flags = |preset_typed, model_typed| {
            let line = ["lily", "plan", "--preset", "layer4", "--model", "m"];
            let Ok(Cli { command: Command::Plan(mut flags) }) = Cli::try_parse_from(line) else {
                panic!("a plan")
            };
            flags.one_model(preset_typed, model_typed).map(|()| (flags.preset, flags.model))
        };
        assert_eq!(flags(true, false).unwrap(), (Some("layer4".into()), None));
        assert_eq!(flags(false, true).unwrap(), (None, Some("m".into())));
        for typed in [false, true] {
            let error = flags(typed, typed).unwrap_err().to_string();
            assert!(error.contains("--preset layer4 and --model m"), "{error}");
        }
    }

    #[test]
    fn a_negative_value_is_a_value() {
        let parsed = |line: &[&str]| {
            let matches = command(|_| None).try_get_matches_from(line)?;
            read(&matches)
        };
        for line in [["run", "--presence-penalty", "-1"], ["run", "--seed", "-1"], ["serve", "--seed", "-1"]]
        {
            assert!(parsed(&["lily", line[0], line[1], line[2]]).is_ok(), "{line:?}");
        }
        for line in
            [["serve", "--port", "-1"], ["run", "--temperature", "-0.5"], ["chat", "--context", "-4096"]]
        {
            let refused = parsed(&["lily", line[0], line[1], line[2]]).unwrap_err().to_string();
            assert!(refused.contains(line[1]) && refused.contains(line[2]), "{refused}");
        }
    }

    #[test]
    fn every_flag_is_an_environment_variable_and_every_command_has_examples() {
        let cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands() {
            let help = command.get_after_help().map(|h| h.to_string()).unwrap_or_default();
            assert!(
                help.contains("Examples:\n  lily") || help.contains("Examples:\n  echo"),
                "{command}: {help}"
            );
            // a line that is wrapped cannot be copied
            let examples = help.split_once("Examples:").map_or("", |(_, examples)| examples);
            assert!(examples.lines().all(|line| line.len() < 80), "{command}: {examples}");
            for flag in command
                .get_arguments()
                .filter(|a| !a.is_positional() && !matches!(a.get_id().as_str(), "help" | "version"))
            {
                let wanted = format!("LILY_{}", flag.get_id().as_str().to_uppercase());
                let found = flag.get_env().map(|e| e.to_string_lossy().into_owned());
                assert_eq!(found.as_deref(), Some(wanted.as_str()), "{} of lily {command}", flag.get_id());
                assert!(flag.get_help().is_some(), "{} has no help", flag.get_id());
            }
        }
    }
}
