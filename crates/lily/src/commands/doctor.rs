//! `lily doctor`: what this machine can run. The CPU device is tried on the demo model, not just named.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use lily_cpu::Isa;
use lily_model::{Forward, LogitRows, RunnerOptions};
use serde::Serialize;

use crate::cli::{Device, DoctorFlags, ModelFlags, Precision};
use crate::setup;
use crate::terminal::causes;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    processors: usize,
    memory_total_bytes: usize,
    memory_available_bytes: usize,
    devices: Vec<DeviceReport>,
}

#[derive(Serialize)]
struct DeviceReport {
    name: &'static str,
    works: bool,
    detail: String,
}

pub(crate) fn run(flags: &DoctorFlags) -> Result<ExitCode> {
    let (available, total) = setup::machine();
    // before the device pins this thread, after which the system names one processor only
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpu = match try_cpu() {
        Ok(detail) => DeviceReport { name: "cpu", works: true, detail },
        Err(error) => DeviceReport { name: "cpu", works: false, detail: causes(&error) },
    };
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        processors,
        memory_total_bytes: total,
        memory_available_bytes: available,
        devices: vec![
            cpu,
            DeviceReport { name: "metal", works: false, detail: "not in this version".into() },
            DeviceReport { name: "cuda", works: false, detail: "not in this version".into() },
        ],
    };
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        writeln!(out, "lily {} on {} processors", report.version, report.processors)?;
        writeln!(out, "  memory   {} available of {}", setup::readable(available), setup::readable(total))?;
        for device in &report.devices {
            let works = if device.works { "works" } else { "no" };
            writeln!(out, "  {:<8} {works}: {}", device.name, device.detail)?;
        }
    }
    Ok(if report.devices.iter().any(|d| d.works) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a few tokens of the demo model both ways and compares.
fn try_cpu() -> Result<String> {
    let flags =
        ModelFlags { model: None, device: Device::Cpu, threads: None, precision: Some(Precision::Exact) };
    let (model, _) = setup::load_weights(None)?;
    let model = std::sync::Arc::new(model);
    let options = RunnerOptions { context: 64, max_chunk: 16, max_decode_rows: 1 };
    let mut runner = setup::runner(&model, &flags, options, 1 << 30)?;
    let started = Instant::now();
    let tokens: Vec<u32> = (0..16).map(|i| i * 37 % 1000).collect();
    let whole = runner.open()?;
    runner.prefill(whole, &tokens, LogitRows::Last)?;
    let prefilled = runner.logits(0).to_vec();
    let stepped = runner.open()?;
    for token in &tokens {
        runner.decode(&[(stepped, *token)])?;
    }
    ensure!(
        runner.logits(0) == prefilled,
        "prefill and decode disagree on a short test: please report this machine"
    );
    use lily_model::device::Device as _;
    let sets: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    Ok(format!(
        "{}; this processor has {}; self-test passed in {:.2} s",
        runner.device().describe(),
        sets.join(", "),
        started.elapsed().as_secs_f64()
    ))
}
