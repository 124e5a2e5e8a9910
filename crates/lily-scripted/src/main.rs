//! `lily-scripted`: the server with answers from a file. See the library's documentation for the format.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use lily_protocol::Sampling;
use lily_scripted::{EngineOptions, Script, ScriptedEngine, builtin_text, router};
use lily_server::{ServerConfig, Service, bind};
use lily_text::TextModel;

/// Lily's server and text side over a scripted engine: for tests of clients and protocols.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  \
        echo '{\"thinking\": false, \"pieces\": [\"Hello\", \" there\"], \"finish\": \"stop\"}' > hello.jsonl\n  \
        lily-scripted --script hello.jsonl --port 0\n\n\
        A line: {\"match\": \"part of the prompt\", \"thinking\": true, \"pieces\": [\"text\", {\"id\": 5},\n\
        {\"bytes\": \"f09f\"}, {\"sleep_ms\": 20}], \"finish\": \"stop\" | \"length\" | \"error\"}"
)]
struct Flags {
    /// The answers, one JSON object a line.
    #[arg(long, value_name = "FILE.jsonl")]
    script: PathBuf,
    /// Address to bind.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to bind; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Folder with tokenizer.json and chat_template.jinja [default: a built-in one].
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Tokens that a prompt and its answer may have together.
    #[arg(long, default_value_t = EngineOptions::default().context, value_name = "N")]
    context: usize,
    /// Answers running at one moment.
    #[arg(long, default_value_t = EngineOptions::default().parallel, value_name = "N")]
    parallel: usize,
    /// Requests that may wait besides; one more is answered 429.
    #[arg(long, default_value_t = EngineOptions::default().queue, value_name = "N")]
    queue: usize,
    /// Name of the model.
    #[arg(long, default_value = "lily-scripted")]
    model_name: String,
    /// Keys of which a request has to bring one.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,
    /// A file with more keys, one a line; a hangup signal reads it again.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Further names of the model.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    alias: Vec<String>,
    /// Serve no other name.
    #[arg(long)]
    strict_model: bool,
    /// Names accepted in the Host header besides the usual ones.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Silence in a stream after which a comment is sent.
    #[arg(long, default_value_t = 10_000, value_name = "MS")]
    keep_alive_ms: u64,
    /// Pretend to load a model for this long.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    load_ms: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let color = std::io::stderr().is_terminal();
    // as lily's: a line that cannot be written is lost, and nothing panics
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).log_internal_errors(false);
    log.with_ansi(color).with_target(false).init();
    let path = flags.script.display();
    let text = std::fs::read_to_string(&flags.script).with_context(|| format!("--script {path}"))?;
    let script = Script::parse(&text).with_context(|| format!("--script {path}"))?;
    let text = Arc::new(match &flags.tokenizer {
        Some(folder) => {
            TextModel::from_dir(folder).with_context(|| format!("--tokenizer {}", folder.display()))?
        }
        None => builtin_text()?,
    });
    anyhow::ensure!(flags.context >= 2, "--context is {}, and must be at least 2", flags.context);
    let server = bind(ServerConfig {
        host: flags.host,
        port: flags.port,
        allowed_hosts: flags.allowed_hosts,
        api_keys: flags.api_key,
        api_key_file: flags.api_key_file,
        keep_alive: Duration::from_millis(flags.keep_alive_ms.max(1)),
        ..ServerConfig::default()
    })
    .await?;
    let options = EngineOptions { context: flags.context, parallel: flags.parallel, queue: flags.queue };
    let engine = ScriptedEngine::new(script, text.clone(), options);
    let handle = server.handle();
    let mut service = Service::new(Arc::new(engine.clone()), text, flags.model_name);
    service.strict_model = flags.strict_model;
    service.aliases = flags.alias;
    service.parallel = flags.parallel;
    service.sampling = Sampling { temperature: 1.0, top_p: 0.95, top_k: 20, ..Sampling::greedy() };
    if flags.load_ms == 0 {
        handle.ready(service);
    } else {
        let handle = handle.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(flags.load_ms)).await;
            handle.ready(service);
        });
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on {}", server.url())?;
    stdout.flush()?;
    drop(stdout);

    tokio::spawn(async move { handle.obey_signals().await });
    server.serve(router(engine)).await;
    Ok(())
}
