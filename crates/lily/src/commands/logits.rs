//! `lily logits`: what the model computes, to compare with other implementations. Obeys its flags exactly: chunks are cut
//! where they say and nowhere else.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use lily_model::{Forward, LogitRows, Model, RunnerOptions};
use safetensors::tensor::{Dtype, TensorView};

use super::DEMO_NOTICE;
use crate::cli::{LogitsFlags, Precision};
use crate::setup;
use crate::terminal::remark;

/// The largest file of token ids that is read.
const LARGEST_FILE: u64 = 64 << 20;

pub(crate) fn run(flags: &LogitsFlags) -> Result<ExitCode> {
    let (model, _) = setup::load_weights(flags.model.model.as_deref())?;
    if flags.model.model.is_none() {
        remark(DEMO_NOTICE);
    }
    let model = Arc::new(model);
    let mut flags = flags.clone();
    flags.model.precision.get_or_insert(Precision::Exact);
    let flags = &flags;
    let target = Target::of(&flags.out)?;
    let tokens = read_tokens(flags, &model)?;
    let steps = Steps::new(tokens.len(), flags);
    let first = flags.last.map_or(0, |n| tokens.len().saturating_sub(n as usize));
    let logits = compute(flags, &model, &tokens, &steps, first)?;
    write(flags, &target, &model, &logits, first..tokens.len(), &steps)?;
    remark(format_args!(
        "{}: logits of {} positions, {} prefill chunks, {} decode steps",
        flags.out.display(),
        tokens.len() - first,
        steps.chunks.len(),
        steps.decode
    ));
    Ok(ExitCode::SUCCESS)
}

/// How the tokens are fed.
struct Steps {
    /// Lengths of the prefill chunks.
    chunks: Vec<usize>,
    /// Single tokens after them.
    decode: usize,
}

impl Steps {
    fn new(tokens: usize, flags: &LogitsFlags) -> Self {
        let prefill = flags.decode_from.unwrap_or(tokens).min(tokens);
        let chunk = flags.prefill_chunk as usize;
        let mut chunks = vec![chunk; prefill / chunk];
        chunks.extend((!prefill.is_multiple_of(chunk)).then_some(prefill % chunk));
        Steps { chunks, decode: tokens - prefill }
    }
}

fn read_tokens(flags: &LogitsFlags, model: &Model) -> Result<Vec<u32>> {
    let path = flags.tokens.display();
    let mut text = String::new();
    // Bounded while it is read: the size of a pipe (`--tokens <(...)`) or a device is not known before.
    let read = File::open(&flags.tokens).and_then(|f| f.take(LARGEST_FILE + 1).read_to_string(&mut text));
    let size = read.with_context(|| format!("--tokens {path}"))?;
    ensure!(
        size as u64 <= LARGEST_FILE,
        "--tokens {path} has more than {LARGEST_FILE} bytes, more than any list of tokens that a model takes"
    );
    let values: Vec<serde_json::Value> = serde_json::from_str(&text)
        .with_context(|| format!("--tokens {path}: wanted a JSON array of token ids"))?;
    ensure!(!values.is_empty(), "--tokens {path} is an empty list: at least one token is needed");
    let (vocab, context) = (model.geometry.vocab, model.geometry.max_context);
    ensure!(
        values.len() <= context,
        "--tokens {path} has {} tokens, and the model takes at most {context}",
        values.len()
    );
    let id = |(i, value): (usize, &serde_json::Value)| match value.as_u64() {
        Some(id) if id < vocab as u64 => Ok(id as u32),
        _ => bail!("--tokens {path}: entry {i} is {value}, wanted a token id from 0 to {}", vocab - 1),
    };
    values.iter().enumerate().map(id).collect()
}

/// Logits of the positions from `first` on, [positions, vocab] in little-endian f32.
fn compute(
    flags: &LogitsFlags,
    model: &Arc<Model>,
    tokens: &[u32],
    steps: &Steps,
    first: usize,
) -> Result<Vec<u8>> {
    let chunk = steps.chunks.first().copied().unwrap_or(1);
    let context = u32::try_from(tokens.len().max(2)).context("too many tokens")?;
    let device = setup::choose(&flags.model, model)?;
    device.explain();
    let budget = setup::Budget::for_model(
        model,
        &device,
        chunk,
        Some(context.min(model.geometry.max_context as u32)),
        Some(0),
    )?;
    let options = RunnerOptions { context: tokens.len(), max_chunk: chunk, max_decode_rows: 1 };
    let mut runner = device.runner(model, options, budget.state)?;
    let bar = ProgressBar::new(tokens.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} tokens, {eta} left") {
        bar.set_style(style);
    }
    let mut out = Vec::new();
    let mut keep = |logits: &[f32]| out.extend(logits.iter().flat_map(|x| x.to_le_bytes()));
    let sequence = runner.open()?;
    let mut at = 0;
    for length in &steps.chunks {
        let wanted = (first.max(at)..at + length).len();
        let rows = match wanted {
            0 => LogitRows::None,
            1 => LogitRows::Last,
            _ => LogitRows::All,
        };
        runner.prefill(sequence, &tokens[at..at + length], rows)?;
        match rows {
            LogitRows::None => {}
            LogitRows::Last => keep(runner.logits(0)),
            LogitRows::All => (length - wanted..*length).for_each(|row| keep(runner.logits(row))),
        }
        at += length;
        bar.set_position(at as u64);
    }
    for token in &tokens[at..] {
        runner.decode(&[(sequence, *token)])?;
        if at >= first {
            keep(runner.logits(0));
        }
        at += 1;
        bar.set_position(at as u64);
    }
    bar.finish_and_clear();
    Ok(out)
}

/// Where the logits go. Found out before they are computed, which may take long.
enum Target {
    /// A regular file, links followed: written beside its place and then moved there, so that it is never half written.
    File(PathBuf),
    /// A pipe or a device, written through. A file must never be moved into its place: as root, that would replace
    /// `/dev/null` for the whole machine.
    Stream(File),
}

impl Target {
    fn of(out: &Path) -> Result<Target> {
        let context = || format!("--out {}", out.display());
        match out.metadata() {
            Ok(found) if found.is_dir() => bail!("--out {} is a folder; wanted a file", out.display()),
            Ok(found) if found.is_file() => Ok(Target::File(out.canonicalize().with_context(context)?)),
            Ok(_) => OpenOptions::new().write(true).open(out).map(Target::Stream).with_context(context),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                folder.metadata().with_context(context)?;
                Ok(Target::File(out.to_owned()))
            }
            Err(error) => Err(error).with_context(context),
        }
    }
}

fn write(
    flags: &LogitsFlags,
    target: &Target,
    model: &Model,
    logits: &[u8],
    positions: std::ops::Range<usize>,
    steps: &Steps,
) -> Result<()> {
    let shape = vec![positions.len(), model.geometry.vocab];
    let positions: Vec<u8> = positions.flat_map(|p| (p as i32).to_le_bytes()).collect();
    let tensors = [
        ("logits", TensorView::new(Dtype::F32, shape.clone(), logits)?),
        ("positions", TensorView::new(Dtype::I32, vec![shape[0]], &positions)?),
    ];
    let metadata = HashMap::from([
        ("prefill_chunks".to_owned(), serde_json::to_string(&steps.chunks)?),
        ("decode_steps".to_owned(), steps.decode.to_string()),
    ]);
    let context = || format!("--out {}", flags.out.display());
    match target {
        Target::File(path) => {
            safetensors::serialize_to_file(tensors, Some(metadata), path).with_context(context)
        }
        Target::Stream(file) => {
            let bytes = safetensors::serialize(tensors, Some(metadata)).with_context(context)?;
            (&mut &*file).write_all(&bytes).with_context(context)
        }
    }
}
