//! The tokens that a model is made to read.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use lily_model::Model;
use lily_text::TextModel;

use super::super::ids::ids;
use crate::cli::EvalFlags;
use crate::setup;

/// A page of prose, sums, code and a table, in our own words.
const BUILT_IN: &str = include_str!("../../../../../assets/eval.txt");

/// A conversation in the form and in the words of the demo model, most of them its own: it was taught to answer, so prose, and what
/// users say, is what it foretells worse than chance.
const OF_THE_DEMO: &str = include_str!("../../../../../assets/eval-demo.txt");

/// Tokens taken by the rule, where there is no text.
const WITHOUT_TEXT: usize = 512;

/// The largest text that is read.
const LARGEST_FILE: u64 = 64 << 20;

/// A model, and what it is evaluated with.
pub(super) struct Subject {
    pub(super) model: Arc<Model>,
    pub(super) name: String,
    pub(super) tokens: Vec<u32>,
    /// Where the tokens come from, and how many there are of them in all.
    pub(super) source: String,
    pub(super) in_all: usize,
}

impl Subject {
    pub(super) fn of(flags: &EvalFlags) -> Result<Subject> {
        let argument = flags.model.model.as_deref();
        let limit = flags.limit.map(|n| n as usize);
        let (model, name, text) = match flags.text {
            Some(_) => {
                let loaded = setup::load(argument).context("--text needs a model with a tokenizer")?;
                (loaded.model, loaded.name, Some(loaded.text))
            }
            None => setup::load_with_any_text(argument)?,
        };
        let (mut tokens, source) = tokens(flags, &model, text.as_deref(), limit)?;
        let in_all = tokens.len();
        let longest = model.geometry.max_context;
        ensure!(
            limit.is_none_or(|limit| limit <= longest),
            "--limit is {}, and this model was made for at most {longest} tokens",
            limit.unwrap_or_default()
        );
        tokens.truncate(limit.unwrap_or(longest).min(longest));
        ensure!(
            tokens.len() >= 2,
            "{source} has {in_all} token{}; wanted at least two, since each is foretold by those before it",
            if in_all == 1 { "" } else { "s" }
        );
        Ok(Subject { model, name, tokens, source, in_all })
    }
}

fn tokens(
    flags: &EvalFlags,
    model: &Model,
    text: Option<&TextModel>,
    limit: Option<usize>,
) -> Result<(Vec<u32>, String)> {
    match (text, &flags.text) {
        (Some(side), Some(path)) => {
            Ok((side.tokenizer().encode_text(&read(path)?), format!("--text {}", path.display())))
        }
        (Some(side), None) if flags.model.model.is_none() => Ok((
            side.tokenizer().encode_marked(OF_THE_DEMO),
            "a conversation of the demo model's kind".to_owned(),
        )),
        (Some(side), None) => Ok((side.tokenizer().encode_text(BUILT_IN), "the built-in text".to_owned())),
        (None, _) => {
            let count = limit.unwrap_or(WITHOUT_TEXT).min(model.geometry.max_context);
            Ok((ids(0..count, model.geometry.vocab), "ids by the rule (no text)".to_owned()))
        }
    }
}

/// Bounded while it is read: the size of a pipe or a device is not known before.
fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
    let size = read.with_context(|| format!("--text {shown}"))?;
    ensure!(
        size as u64 <= LARGEST_FILE,
        "--text {shown} has more than {LARGEST_FILE} bytes; wanted a shorter text"
    );
    String::from_utf8(bytes).with_context(|| format!("--text {shown} is no text in UTF-8"))
}
