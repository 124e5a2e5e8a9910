//! `lily serve`: the API on a port.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lily_server::{ServerConfig, Service, bind};

use super::DEMO_NOTICE;
use crate::cli::ServeFlags;
use crate::setup;
use crate::terminal::{STYLED, remark};

pub(crate) fn run(flags: &ServeFlags) -> Result<ExitCode> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(*STYLED).with_target(false).init();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no async runtime")?;
    let done = runtime.block_on(serve(flags));
    // A model that is still being opened is nobody's any more.
    runtime.shutdown_background();
    done
}

async fn serve(flags: &ServeFlags) -> Result<ExitCode> {
    let server = bind(ServerConfig {
        host: flags.host.clone(),
        port: flags.port,
        allowed_hosts: flags.allowed_hosts.clone(),
        api_keys: flags.api_key.clone(),
        api_key_file: flags.api_key_file.clone(),
        requests_per_key: flags.requests_per_key.map(usize::from),
        cors_origins: flags.cors_origins.clone(),
        allow_public: flags.allow_public,
        ..ServerConfig::default()
    })
    .await?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", server.url())?;
    out.flush()?;

    // The port answers (503, loading) while the model is opened.
    let handle = server.handle();
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
    service.seed = flags.seed;
    service.request_timeout = flags.request_timeout.map(|seconds| Duration::from_secs(seconds.into()));
    service.aliases = flags.alias.clone();
    service.parallel = usize::from(flags.parallel);
    handle.ready(service);
    remark(format_args!(
        "{} on {}: {} tokens of context, {} requests at once, {} for earlier states; Ctrl-C ends",
        loaded.name,
        started.device,
        started.budget.context,
        flags.parallel,
        setup::readable(started.budget.cache)
    ));
    serving.await.context("the server ended")?;
    // Whatever is still running has been given its time by the server.
    tokio::task::spawn_blocking(move || engine.shutdown(false)).await.context("the engine ended")?;
    Ok(ExitCode::SUCCESS)
}

/// The slow part: weights, text side, engine.
fn open(flags: &ServeFlags) -> Result<(setup::LoadedModel, setup::Started)> {
    let loaded = setup::load(flags.model.model.as_deref())?;
    if loaded.is_demo {
        remark(DEMO_NOTICE);
    }
    let (parallel, queue) = (usize::from(flags.parallel), usize::from(flags.queue));
    let started = setup::start(&loaded, &flags.model, &flags.memory, parallel, queue)?;
    Ok((loaded, started))
}
