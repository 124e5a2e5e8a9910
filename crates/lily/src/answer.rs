//! One answer in the terminal: prompt in, text out as it comes, figures at the end.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use lily_protocol::{Engine, Event, FinishReason, GenerationRequest, Sampling, Usage};
use lily_text::{Chat, Delta, OutputOptions, OutputStream, TextModel};

use crate::interrupt::Interruptible;
use crate::terminal::{dim, shown};

/// A bar is drawn for prompts that take longer than this.
const BAR_AFTER: Duration = Duration::from_secs(1);

/// Stands before reasoning, so that nobody takes it for the answer.
const THINKING: &str = "(thinking) ";

/// How an answer is made.
pub(crate) struct Asking<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) text: &'a Arc<TextModel>,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Write content to standard output and reasoning to standard error as they come.
    pub(crate) show_content: bool,
    pub(crate) show_reasoning: bool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) ending: Ending,
    pub(crate) usage: Usage,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By itself, or at a stop string.
    Stop,
    /// At the most tokens it may have.
    Length,
    /// By Ctrl-C.
    Interrupted,
}

impl Ending {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Ending::Stop => "stop",
            Ending::Length => "length",
            Ending::Interrupted => "interrupted",
        }
    }
}

/// Asks, and shows what comes.
pub(crate) fn ask(asking: &Asking<'_>, chat: &Chat) -> Result<Answer> {
    let prompt = asking.text.prompt(chat)?;
    let answering = Interruptible::begin();
    let prompt_tokens = prompt.tokens.len();
    let request = GenerationRequest {
        prompt: prompt.tokens,
        text: None,
        max_tokens: asking.max_tokens,
        sampling: asking.sampling.clone(),
        logprobs: None,
        prompt_logprobs: None,
        ignore_end: false,
    };
    let mut generation = asking.engine.submit(request)?;
    let options = OutputOptions {
        starts_in_reasoning: prompt.starts_in_reasoning,
        stop: asking.stop.clone(),
        ..OutputOptions::default()
    };
    let mut output = OutputStream::new(asking.text, options);
    let mut show = Show::new(asking);
    let mut bar = PromptBar::new(prompt_tokens);
    let mut usage = Usage { prompt_tokens, ..Usage::default() };
    let started = std::time::Instant::now();
    let mut prefilled = 0;
    let ending = 'answer: loop {
        if answering.interrupted() {
            break Ending::Interrupted;
        }
        let Some(event) = generation.next_blocking() else { bail!("the engine ended before the answer did") };
        match event {
            Event::Prefill { done, cached, .. } => {
                usage.cached_tokens = cached;
                prefilled = done;
                bar.at(done);
            }
            // Not asked for.
            Event::Prompt(_) => {}
            Event::Tokens(tokens) => {
                if usage.completion_tokens == 0 {
                    usage.prefill_seconds = started.elapsed().as_secs_f64();
                }
                bar.finish();
                for token in tokens {
                    usage.completion_tokens += 1;
                    let step = output.push(token.id);
                    show.deltas(step.deltas)?;
                    if step.stopped.is_some() {
                        break 'answer Ending::Stop;
                    }
                }
            }
            Event::Finished { reason, usage: counted } => {
                usage = counted;
                break match reason {
                    FinishReason::Stop => Ending::Stop,
                    FinishReason::Length => Ending::Length,
                };
            }
            Event::Failed(why) => bail!("{why}"),
        }
    };
    drop(generation);
    bar.finish();
    if ending == Ending::Interrupted && usage.completion_tokens == 0 {
        // All the time went into the part of the prompt that was read.
        usage.prompt_tokens = prefilled;
        usage.prefill_seconds = started.elapsed().as_secs_f64();
    } else if usage.decode_seconds == 0.0 {
        usage.decode_seconds = started.elapsed().as_secs_f64() - usage.prefill_seconds;
    }
    show.deltas(output.finish())?;
    show.end()?;
    Ok(Answer { content: show.content, reasoning: show.reasoning, ending, usage })
}

/// `prompt 20 tokens (12 reused) in 0.02 s, 1,000 tok/s; answer 40 tokens in 0.10 s, 400 tok/s`
pub(crate) fn figures(usage: &Usage) -> String {
    let rate = |tokens: usize, seconds: f64| {
        if seconds > 0.0 { format!("{:.0} tok/s", tokens as f64 / seconds) } else { "-".to_owned() }
    };
    let computed = usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens);
    let reused =
        if usage.cached_tokens > 0 { format!(" ({} reused)", usage.cached_tokens) } else { String::new() };
    format!(
        "prompt {} tokens{reused} in {:.2} s, {}; answer {} tokens in {:.2} s, {}",
        usage.prompt_tokens,
        usage.prefill_seconds,
        rate(computed, usage.prefill_seconds),
        usage.completion_tokens,
        usage.decode_seconds,
        rate(usage.completion_tokens, usage.decode_seconds)
    )
}

/// Writes deltas where they belong and keeps them.
struct Show<'a> {
    asking: &'a Asking<'a>,
    content: String,
    reasoning: String,
    /// Reasoning was written to standard error, and its last line is not ended.
    in_reasoning: bool,
}

impl<'a> Show<'a> {
    fn new(asking: &'a Asking<'a>) -> Self {
        Show { asking, content: String::new(), reasoning: String::new(), in_reasoning: false }
    }

    fn deltas(&mut self, deltas: Vec<Delta>) -> Result<()> {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    self.reasoning.push_str(&text);
                    if self.asking.show_reasoning {
                        let mut err = std::io::stderr().lock();
                        let opening = if self.in_reasoning { "" } else { THINKING };
                        self.in_reasoning = true;
                        // like any remark: a standard error that takes nothing does not end the answer
                        let _ = write!(
                            err,
                            "{}",
                            dim(format_args!("{opening}{}", shown(&text, err.is_terminal())))
                        )
                        .and_then(|()| err.flush());
                    }
                }
                Delta::Content(text) => {
                    self.leave_reasoning();
                    self.content.push_str(&text);
                    if self.asking.show_content {
                        let mut out = std::io::stdout().lock();
                        write!(out, "{}", shown(&text, out.is_terminal()))?;
                        out.flush()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn leave_reasoning(&mut self) {
        if std::mem::take(&mut self.in_reasoning) {
            let _ = writeln!(std::io::stderr(), "\n");
        }
    }

    fn end(&mut self) -> Result<()> {
        self.leave_reasoning();
        if self.asking.show_content && !self.content.is_empty() {
            let mut out = std::io::stdout().lock();
            writeln!(out)?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Progress on a long prompt, on standard error if that is a terminal.
struct PromptBar {
    bar: Option<ProgressBar>,
    total: usize,
    started: std::time::Instant,
}

impl PromptBar {
    fn new(total: usize) -> Self {
        PromptBar { bar: None, total, started: std::time::Instant::now() }
    }

    fn at(&mut self, done: usize) {
        if self.bar.is_none() && done < self.total && self.started.elapsed() >= BAR_AFTER {
            let bar = ProgressBar::new(self.total as u64);
            let style =
                ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
