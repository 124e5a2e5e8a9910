//! `lily serve`: the API on a port.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lily_server::{ServerConfig, Service, TlsFiles, bind};

use super::DEMO_NOTICE;
use crate::cli::ServeFlags;
use crate::logging::{self, LogFile};
use crate::running::{self, Entry, Held};
use crate::setup;
use crate::terminal::remark;

pub(crate) fn run(flags: &ServeFlags) -> Result<ExitCode> {
    let log = logging::begin(flags.log_file.as_deref())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no async runtime")?;
    let done = runtime.block_on(serve(flags, log));
    // A model that is still being opened is nobody's any more.
    runtime.shutdown_background();
    done
}

async fn serve(flags: &ServeFlags, log: Option<LogFile>) -> Result<ExitCode> {
    let server = bind(config(flags)).await?;
    let url = server.url();
    let mut out = std::io::stdout();
    writeln!(out, "listening on {url}")?;
    out.flush()?;
    // The port answers (503, loading) while the model is opened.
    let handle = server.handle();
    #[cfg(unix)]
    match log {
        Some(log) => drop(tokio::spawn(log.reopen_at_hangup())),
        None if handle.rereads_at_hangup() => {}
        None => {
            let handle = handle.clone();
            tokio::spawn(async move { handle.drain_at_hangup().await });
        }
    }
    let signals = handle.clone();
    tokio::spawn(async move { signals.obey_signals().await });
    let mut serving = tokio::spawn(server.serve(axum::Router::new()));

    let opening = {
        let flags = flags.clone();
        tokio::task::spawn_blocking(move || open(&flags))
    };
    let (loaded, started) = tokio::select! {
        opened = opening => opened.context("opening the model")??,
        // An interrupt: nothing runs that it would have to wait for.
        ended = &mut serving => {
            ended.context("the server ended")?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let engine = Arc::new(started.engine);
    let mut service = Service::new(engine.clone(), loaded.text.clone(), loaded.name.clone());
    service.sampling = setup::default_sampling(&loaded.model.sampling_defaults);
    service.strict_model = flags.strict_model;
    service.seed = flags.seed.and_then(|seed| seed.0);
    service.request_timeout = seconds(flags.request_timeout);
    service.aliases = flags.alias.clone();
    service.parallel = started.parallel;
    handle.ready(service);
    remark(format_args!(
        "{} on {}: {} tokens of context, {} requests at once, {} for earlier states; Ctrl-C ends",
        loaded.name,
        started.device,
        started.budget.context,
        started.parallel,
        setup::readable(started.budget.cache)
    ));
    let context = started.budget.context;
    let _entry = enter(Entry {
        pid: std::process::id(),
        url,
        model: loaded.name.clone(),
        device: started.device,
        context,
        started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
    });
    // The engine alone holds the weights, so that it can let them go.
    drop(loaded);
    serving.await.context("the server ended")?;
    // Whatever is still running has been given its time by the server.
    tokio::task::spawn_blocking(move || engine.shutdown(false)).await.context("the engine ended")?;
    Ok(ExitCode::SUCCESS)
}

fn config(flags: &ServeFlags) -> ServerConfig {
    let tls = flags.tls_cert.clone().zip(flags.tls_key.clone());
    ServerConfig {
        host: flags.host.clone(),
        port: flags.port,
        socket: flags.socket.clone(),
        tls: tls.map(|(cert, key)| TlsFiles { cert, key }),
        allowed_hosts: flags.allowed_hosts.clone(),
        api_keys: flags.api_key.clone(),
        api_key_file: flags.api_key_file.clone(),
        requests_per_key: flags.requests_per_key.map(usize::from),
        cors_origins: flags.cors_origins.clone(),
        allow_public: flags.allow_public,
        ..ServerConfig::default()
    }
}

fn seconds(seconds: Option<u32>) -> Option<Duration> {
    seconds.map(|seconds| Duration::from_secs(seconds.into()))
}

/// Lets `lily ps` know of this server. A server that cannot be listed serves all the same.
fn enter(entry: Entry) -> Option<Held> {
    let folder = running::folder(|name| std::env::var_os(name))?;
    match running::enter(&folder, &entry) {
        Ok(held) => Some(held),
        Err(error) => {
            tracing::warn!("lily ps will not list this server: the folder {}: {error}", folder.display());
            None
        }
    }
}

/// The slow part: weights, text side, engine.
fn open(flags: &ServeFlags) -> Result<(setup::LoadedModel, setup::Started)> {
    let loaded = setup::load(flags.model.model.as_deref())?;
    if loaded.is_demo() {
        remark(DEMO_NOTICE);
    }
    let places = setup::Places {
        parallel: flags.parallel.map(usize::from),
        queue: usize::from(flags.queue),
        idle_unload: seconds(flags.idle_unload),
    };
    let started = setup::start(&loaded, &flags.model, &flags.memory, &flags.trace, places)?;
    Ok((loaded, started))
}
