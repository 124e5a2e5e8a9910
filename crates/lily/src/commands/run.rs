//! `lily run`: one answer.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lily_text::{Chat, Message};
use serde_json::json;

use super::DEMO_NOTICE;
use crate::answer::{Asking, Ending, ask, figures};
use crate::cli::{OnOff, RunFlags};
use crate::terminal::remark;
use crate::{interrupt, setup};

/// How long a silent pipe is waited for when there is a prompt already. A program that starts `lily` and leaves its
/// standard input open without ever writing must not hang it.
const PIPE_PATIENCE: Duration = Duration::from_millis(300);

pub(crate) fn run(flags: &RunFlags) -> Result<ExitCode> {
    let prompt = prompt(flags)?;
    interrupt::listen()?;
    let loaded = setup::load(flags.model.model.as_deref())?;
    if loaded.is_demo() && !flags.quiet && !flags.json {
        remark(DEMO_NOTICE);
    }
    let started = setup::start(&loaded, &flags.model, &flags.memory, &flags.trace, setup::Places::ONE)?;
    let chat = Chat {
        enable_thinking: flags.sampling.thinking.map(|t| t == OnOff::On),
        ..Chat::new(first_messages(flags.sampling.system.as_deref(), prompt))
    };
    let asking = Asking {
        engine: &started.engine,
        text: &loaded.text,
        sampling: setup::sampling(&loaded.model.sampling_defaults, &flags.sampling),
        max_tokens: flags.sampling.max_tokens.map(|n| n as usize),
        stop: flags.sampling.stop.clone(),
        show_content: !flags.json,
        show_reasoning: !flags.json && !flags.quiet,
    };
    let answer = ask(&asking, &chat)?;
    if flags.json {
        let usage = &answer.usage;
        let object = json!({
            "model": loaded.name,
            "content": answer.content,
            "reasoning_content": answer.reasoning,
            "finish_reason": answer.ending.name(),
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "prefill_seconds": usage.prefill_seconds,
                "decode_seconds": usage.decode_seconds,
            },
        });
        writeln!(std::io::stdout(), "{object}")?;
    } else if !flags.quiet {
        if answer.ending == Ending::Length {
            remark("(stopped at the most tokens an answer may have; --max-tokens and --context set them)");
        }
        let (device, context) = (started.device, started.budget.context);
        remark(format_args!("{}; {device}; {context} tokens of context", figures(&answer.usage)));
    }
    let interrupted = answer.ending == Ending::Interrupted;
    Ok(if interrupted { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// The opening of a conversation.
pub(crate) fn first_messages(system: Option<&str>, prompt: String) -> Vec<Message> {
    system.map(Message::system).into_iter().chain([Message::user(prompt)]).collect()
}

/// The prompt's words, and what is piped in.
fn prompt(flags: &RunFlags) -> Result<String> {
    let mut words = flags.prompt.clone();
    let wait = words.last().is_some_and(|w| w == "-");
    if wait {
        words.pop();
    }
    let words = words.join(" ");
    let piped = if std::io::stdin().is_terminal() {
        ensure!(!wait, "- stands for piped text, and standard input is a terminal");
        String::new()
    } else {
        read_piped(wait || words.is_empty())?
    };
    let piped = piped.trim_end();
    let prompt = match (words.is_empty(), piped.is_empty()) {
        (false, true) => words,
        (true, false) => piped.to_owned(),
        (false, false) => format!("{words}\n\n{piped}"),
        (true, true) => {
            bail!("nothing to answer: give a prompt, as in  lily run \"What is the capital of Japan?\"")
        }
    };
    Ok(prompt)
}

/// All of standard input; with `wait` false, nothing if nothing comes at once.
fn read_piped(wait: bool) -> Result<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = stdin.read(&mut buffer).map(|n| buffer[..n].to_vec());
            let last = !matches!(&read, Ok(bytes) if !bytes.is_empty());
            if sender.send(read).is_err() || last {
                return;
            }
        }
    });
    let mut bytes = Vec::new();
    loop {
        let part = if wait || !bytes.is_empty() {
            receiver.recv().context("standard input")?
        } else {
            match receiver.recv_timeout(PIPE_PATIENCE) {
                Ok(part) => part,
                Err(_) => {
                    remark(
                        "standard input is open but silent: answering without it (end the prompt with - to wait)",
                    );
                    return Ok(String::new());
                }
            }
        };
        let part = part.context("standard input")?;
        if part.is_empty() {
            break;
        }
        bytes.extend(part);
    }
    String::from_utf8(bytes).context("what is piped in is not UTF-8 text")
}
