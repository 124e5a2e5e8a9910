//! `lily eval`: how well a model foretells a text, and how far a device is from another that reads the same tokens.
//!
//! Both devices go through the text side by side, chunk after chunk, so that logits of one chunk are all that is held.

mod measure;
mod report;
mod text;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use lily_model::device::Device;
use lily_model::{Forward, LogitRows, Model, Runner, RunnerOptions, SequenceId};

use self::measure::{NoNumber, Sums};
use self::report::{Comparison, Report, Side};
use self::text::Subject;
use super::DEMO_NOTICE;
use crate::cli::{self, EvalFlags, ModelFlags};
use crate::interrupt::{self, Interruptible};
use crate::setup;
use crate::terminal::remark;

pub(crate) fn run(flags: &EvalFlags) -> Result<ExitCode> {
    interrupt::listen()?;
    let work = Interruptible::begin();
    let Some(report) = evaluate(flags, &|| work.interrupted())? else {
        remark("stopped; nothing was reported");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    };
    let text = if flags.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.text() };
    write!(std::io::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// Nothing if it was cancelled.
fn evaluate(flags: &EvalFlags, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Option<Report>> {
    let subject = Subject::of(flags)?;
    if flags.model.model.is_none() {
        remark(DEMO_NOTICE);
    }
    let feed = Feed::of(flags, subject.tokens.len());
    let mut device = Reader::new("--device", &flags.model, &subject.model, &feed)?;
    let mut against = match flags.against {
        None => None,
        Some(against) => {
            let flags = ModelFlags {
                device: against,
                precision: Some(flags.against_precision),
                isa: flags.model.isa.filter(|_| against == cli::Device::Cpu),
                metal: if against == cli::Device::Metal { flags.model.metal } else { Default::default() },
                kernels: flags.model.kernels.filter(|_| matches!(against, cli::Device::Cuda(_))),
                ..flags.model.clone()
            };
            Some(Reader::new("--against", &flags, &subject.model, &feed)?)
        }
    };
    let Some(sums) =
        on_its_own_thread(|| read(&subject.tokens, &feed, &mut device, against.as_mut(), cancelled))??
    else {
        return Ok(None);
    };
    let note = note(&device, against.as_ref());
    let device = device.side(sums.device.perplexity());
    let against = against.map(|against| against.side(sums.against.perplexity()));
    Ok(Some(Report {
        model: subject.name,
        version: env!("CARGO_PKG_VERSION"),
        text: subject.source,
        tokens: subject.tokens.len(),
        tokens_of_text: subject.in_all,
        prefill_chunk: feed.chunk,
        decode_steps: subject.tokens.len() - feed.decode_from,
        comparison: against.as_ref().map(|against| Comparison::of(&device, against, sums.apart)),
        device,
        against,
        note,
    }))
}

/// What whoever reads the figures has to know.
fn note(device: &Reader, against: Option<&Reader>) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(device.no_gpu.as_ref().map(|reason| format!("no GPU ({reason}): --device auto is the CPU")));
    match against {
        Some(other) if other.name == device.name && other.precision == device.precision => parts.push(
            "both are the same device and precision, which shows that results repeat, no more; --precision or \
             --against-precision makes a difference"
                .to_owned(),
        ),
        Some(other) if other.name == device.name => parts.push(format!(
            "one device: its --precision {} is compared with {}",
            device.precision, other.precision
        )),
        _ => {}
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// How tokens are fed.
struct Feed {
    /// Tokens of a prefill chunk.
    chunk: usize,
    /// The first that comes as a step.
    decode_from: usize,
    /// Of all tokens.
    tokens: usize,
}

impl Feed {
    fn of(flags: &EvalFlags, tokens: usize) -> Feed {
        let decode_from = flags.decode_from.unwrap_or(tokens).min(tokens);
        let chunk = (flags.prefill_chunk as usize).min(decode_from.max(1));
        Feed { chunk, decode_from, tokens }
    }
}

/// A model on a device, in the middle of the text.
struct Reader {
    name: String,
    precision: String,
    /// Why `auto` took the CPU, if it did.
    no_gpu: Option<String>,
    runner: Runner<Box<dyn Device>>,
    sequence: SequenceId,
}

impl Reader {
    fn new(flag: &str, flags: &ModelFlags, model: &Arc<Model>, feed: &Feed) -> Result<Reader> {
        let chosen = setup::choose(flags, model).with_context(|| flag.to_owned())?;
        let context = u32::try_from(feed.tokens).ok();
        let budget = setup::Budget::for_model(model, &chosen, feed.chunk, context, Some(0));
        let budget = budget.with_context(|| format!("{flag}, for {} tokens", feed.tokens))?;
        let options = RunnerOptions { context: feed.tokens, max_chunk: feed.chunk, max_decode_rows: 1 };
        let mut runner = chosen.runner(model, options, budget.state)?;
        let name = runner.device().describe();
        let no_gpu = chosen.no_gpu().map(str::to_owned);
        let precision = chosen.precision.to_possible_value();
        let precision = precision.map_or_else(String::new, |value| value.get_name().to_owned());
        let sequence = runner.open()?;
        Ok(Reader { name, precision, no_gpu, runner, sequence })
    }

    /// Takes tokens in, several as a chunk of prefill.
    fn take(&mut self, tokens: &[u32], is_step: bool) -> Result<()> {
        match tokens {
            [token] if is_step => self.runner.decode(&[(self.sequence, *token)])?,
            // The logits of one row are the last ones.
            [_] => self.runner.prefill(self.sequence, tokens, LogitRows::Last)?,
            _ => self.runner.prefill(self.sequence, tokens, LogitRows::All)?,
        }
        Ok(())
    }

    fn side(self, perplexity: f64) -> Side {
        Side { name: self.name, precision: self.precision, perplexity }
    }
}

/// Both through all tokens, with a bar on a terminal; nothing if it was cancelled.
fn read(
    tokens: &[u32],
    feed: &Feed,
    device: &mut Reader,
    mut against: Option<&mut Reader>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Sums>> {
    let bar = ProgressBar::new(tokens.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, {eta} left") {
        bar.set_style(style);
    }
    let (prompt, steps) = tokens.split_at(feed.decode_from);
    let parts =
        prompt.chunks(feed.chunk).map(|part| (part, false)).chain(steps.chunks(1).map(|part| (part, true)));
    let mut sums = Sums::default();
    let mut at = 0;
    for (part, is_step) in parts {
        if cancelled() {
            return Ok(None);
        }
        device.take(part, is_step)?;
        if let Some(against) = &mut against {
            against.take(part, is_step)?;
        }
        for row in 0..part.len() {
            let want = against.as_ref().map(|against| against.runner.logits(row));
            let added = sums.add(device.runner.logits(row), want, tokens.get(at + row + 1).copied());
            if let Err(who) = added {
                let flag = match who {
                    NoNumber::Device => "--device",
                    NoNumber::Against => "--against",
                };
                bail!(
                    "the logits of position {} on the device of {flag} hold an infinity or no number; wanted finite ones (a \
                     broken checkpoint, or with --precision bf16 a model beyond the range of 16 bits: try --precision exact)",
                    at + row
                );
            }
        }
        at += part.len();
        bar.set_position(at as u64);
    }
    bar.finish_and_clear();
    Ok(Some(sums))
}

/// The CPU device pins the thread that runs it, and the emulator's and the CPU's must be counted by one that is not pinned.
fn on_its_own_thread<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let running = std::thread::Builder::new().name("lily-eval".into()).spawn_scoped(scope, run);
        running
            .context("the thread of the evaluation could not be started")?
            .join()
            .map_err(|_| anyhow!("the evaluation panicked"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn report(arguments: &str) -> Result<Report> {
        let command = ["lily", "eval"].into_iter().chain(arguments.split_whitespace());
        let Command::Eval(flags) = Cli::try_parse_from(command).unwrap().command else { panic!("eval") };
        Ok(evaluate(&flags, &|| false)?.unwrap())
    }

    #[test]
    fn fast_is_near_exact_and_exact_is_itself() {
        let json = |arguments: &str| serde_json::to_value(report(arguments).unwrap()).unwrap();
        let fast = json("--device cpu --against cpu --limit 40 --prefill-chunk 16 --threads 2");
        assert_eq!(
            (&fast["device"]["precision"], &fast["against"]["precision"]),
            (&"fast".into(), &"exact".into())
        );
        let apart = &fast["comparison"];
        let of = |name: &str| apart[name].as_f64().unwrap();
        // fast.rs holds 1e-3 and 0.2% over more text; equal bits would mean that the second is not exact
        assert!(of("kl_mean") > 0.0 && of("kl_mean") < 1e-3 && of("top1_agreement") > 0.95, "{apart}");
        assert!(of("perplexity_difference").abs() < 2e-3 && of("positions") == 40.0, "{apart}");
        let exact = json(
            "--device cpu --precision exact --against cpu --limit 40 --prefill-chunk 7 --decode-from 20 --threads 2",
        );
        assert_eq!(
            (&exact["comparison"]["logit_difference"], &exact["decode_steps"]),
            (&0.0.into(), &20.into())
        );
        // chunks and steps give the same bits
        assert_eq!(exact["device"]["perplexity"], fast["against"]["perplexity"]);
    }

    #[test]
    fn what_is_compared_is_said() {
        let note = |arguments: &str| report(arguments).unwrap().note.unwrap_or_default();
        let pair = note("--device cpu --against cpu --limit 3");
        assert_eq!(pair, "one device: its --precision fast is compared with exact");
        let same = note("--device cpu --against cpu --against-precision fast --limit 3");
        assert!(same.starts_with("both are the same device and precision"), "{same}");
        assert_eq!(note("--device cpu --limit 3"), "");
    }

    #[test]
    fn a_random_model_reads_ids_by_the_rule() {
        let report = report("--device cpu --model synth:layer4:3 --limit 3").unwrap();
        assert_eq!((report.tokens, report.text.as_str()), (3, "ids by the rule (no text)"));
        assert!(report.device.perplexity > 1.0 && report.comparison.is_none());
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (arguments, wanted) in [
            ("--text /nowhere/at/all", "--text /nowhere/at/all"),
            ("--limit 100000", "--limit is 100000, and this model was made for at most 8192 tokens"),
            ("--precision bf16 --device cpu", "--precision bf16 is for --device metal, cuda and emu"),
        ] {
            let error = format!("{:#}", report(arguments).unwrap_err());
            assert!(error.contains(wanted), "{error}");
        }
    }
}
