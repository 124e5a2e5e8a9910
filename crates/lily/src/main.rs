//! `lily`: the command line. It wires a model, a device, the engine, the text side and the server together, and knows
//! what people type and read; everything else is in the other crates.

#![forbid(unsafe_code)]

mod answer;
mod cli;
mod commands;
mod interrupt;
mod logging;
mod running;
mod setup;
mod terminal;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let cli = cli::parse();
    let done = match &cli.command {
        Command::Run(flags) => commands::run::run(flags),
        Command::Chat(flags) => commands::chat::run(flags),
        Command::Serve(flags) => commands::serve::run(flags),
        Command::Ps(flags) => commands::ps::run(flags),
        Command::Inspect(flags) => commands::inspect::run(flags),
        Command::Doctor(flags) => commands::doctor::run(flags),
        Command::Logits(flags) => commands::logits::run(flags),
        Command::Plan(flags) => commands::plan::run(flags),
        Command::Synth(flags) => commands::synth::run(flags),
        Command::Pack(flags) => commands::pack::run(flags),
        Command::Bench(flags) => commands::bench::run(flags),
        Command::Eval(flags) => commands::eval::run(flags),
    };
    match done {
        Ok(code) => code,
        Err(error) if commands::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::failure(&error);
            ExitCode::FAILURE
        }
    }
}
