//! `lily chat`: several turns in the terminal.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use lily_text::{Chat, Message};
use rustyline::error::ReadlineError;

use super::DEMO_NOTICE;
use crate::answer::{Asking, Ending, ask, figures};
use crate::cli::{ChatFlags, OnOff};
use crate::terminal::{failure, remark};
use crate::{interrupt, setup};

const HELP: &str = "\
/help              this list
/new               forget the conversation
/system TEXT       set the instruction (without TEXT: none) and forget the conversation
/thinking on|off   whether the model thinks before it answers
/quit              end the chat (also /exit and Ctrl-D)
Ctrl-C stops an answer, or clears the line.
A line that ends with \\ goes on in the next one.";

pub(crate) fn run(flags: &ChatFlags) -> Result<ExitCode> {
    interrupt::listen()?;
    let loaded = setup::load(flags.model.model.as_deref())?;
    if loaded.is_demo() {
        remark(DEMO_NOTICE);
    }
    let started = setup::start(&loaded, &flags.model, &flags.memory, &flags.trace, setup::Places::ONE)?;
    remark(format_args!(
        "{} on {}; context {}; /help lists commands",
        loaded.name, started.device, started.budget.context
    ));
    let mut talk = Talk {
        messages: Vec::new(),
        system: flags.sampling.system.clone(),
        thinking: flags.sampling.thinking.map(|t| t == OnOff::On),
    };
    let asking = Asking {
        engine: &started.engine,
        text: &loaded.text,
        sampling: setup::sampling(&loaded.model.sampling_defaults, &flags.sampling),
        max_tokens: flags.sampling.max_tokens.map(|n| n as usize),
        stop: flags.sampling.stop.clone(),
        show_content: true,
        show_reasoning: true,
    };
    let mut lines = Lines::open()?;
    while let Some(line) = lines.next()? {
        match talk.command(&line) {
            Heard::Nothing => {}
            Heard::Quit => break,
            Heard::Message => talk.turn(&asking, line)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A conversation.
struct Talk {
    messages: Vec<Message>,
    system: Option<String>,
    thinking: Option<bool>,
}

enum Heard {
    Nothing,
    Quit,
    Message,
}

impl Talk {
    fn command(&mut self, line: &str) -> Heard {
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim()) {
            ("", _) => {}
            ("/help", _) => remark(HELP),
            ("/new", _) => {
                self.messages.clear();
                remark("(conversation forgotten)");
            }
            ("/system", text) => {
                self.messages.clear();
                self.system = (!text.is_empty()).then(|| text.to_owned());
                let what = if text.is_empty() { "no instruction" } else { "instruction set" };
                remark(format_args!("({what}; conversation forgotten)"));
            }
            ("/thinking", how @ ("on" | "off")) => {
                self.thinking = Some(how == "on");
                remark(format_args!("(thinking is {how})"));
            }
            ("/thinking", _) => remark("/thinking takes on or off"),
            ("/quit" | "/exit", _) => return Heard::Quit,
            (word, _) if word.starts_with('/') && !word[1..].contains('/') => {
                remark(format_args!("{word} is not a command; /help lists them"));
            }
            _ => return Heard::Message,
        }
        Heard::Nothing
    }

    /// One turn. An answer that fails leaves the conversation as it was; one that was stopped stays as far as it came.
    fn turn(&mut self, asking: &Asking<'_>, line: String) -> Result<()> {
        self.messages.push(Message::user(line));
        let system = self.system.as_deref().map(Message::system);
        let messages = system.into_iter().chain(self.messages.iter().cloned()).collect();
        let chat = Chat { enable_thinking: self.thinking, ..Chat::new(messages) };
        match ask(asking, &chat) {
            Ok(answer) => {
                match answer.ending {
                    Ending::Interrupted => remark("(stopped)"),
                    Ending::Length => remark("(stopped at the most tokens an answer may have)"),
                    Ending::Stop => {}
                }
                remark(figures(&answer.usage));
                let reasoning = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
                self.messages.push(Message { reasoning, ..Message::assistant(answer.content) });
                Ok(())
            }
            Err(error) if super::is_broken_pipe(&error) => Err(error),
            Err(error) => {
                self.messages.pop();
                failure(&error);
                Ok(())
            }
        }
    }
}

/// Lines from a terminal with editing, or from a pipe.
enum Lines {
    Terminal(Box<rustyline::DefaultEditor>),
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn open() -> Result<Self> {
        if std::io::stdin().is_terminal() {
            Ok(Lines::Terminal(Box::new(rustyline::DefaultEditor::new()?)))
        } else {
            Ok(Lines::Pipe(std::io::stdin().lock().lines()))
        }
    }

    /// The next message; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        let mut message = String::new();
        loop {
            let Some(line) = self.line(if message.is_empty() { "> " } else { ". " })? else {
                return Ok((!message.is_empty()).then_some(message));
            };
            match line.strip_suffix('\\') {
                Some(part) => {
                    message.push_str(part);
                    message.push('\n');
                }
                None => {
                    message.push_str(&line);
                    return Ok(Some(message.trim().to_owned()));
                }
            }
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Option<String>> {
        std::io::stdout().flush()?;
        match self {
            Lines::Pipe(lines) => Ok(lines.next().transpose()?),
            Lines::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                // Ctrl-C on a line being typed clears it, as in a shell
                Err(ReadlineError::Interrupted) => {
                    remark("(Ctrl-D or /quit ends the chat)");
                    Ok(Some(String::new()))
                }
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}
