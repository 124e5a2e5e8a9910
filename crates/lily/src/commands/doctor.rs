//! `lily doctor`: what this machine can run. Devices are tried on the demo model, not just named.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use lily_cpu::Isa;
use lily_model::{Forward, LogitRows, RunnerOptions};
use serde::Serialize;

use crate::cli::{Device, DoctorFlags, MetalFlags, ModelFlags, Precision};
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
    let mut devices = vec![cpu];
    devices.push(metal(flags.metal));
    devices.extend(cuda());
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        processors,
        memory_total_bytes: total,
        memory_available_bytes: available,
        devices,
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

/// The GPU of a Mac, tried like the CPU, with what the system lets it use and what holds it back now.
fn metal(flags: MetalFlags) -> DeviceReport {
    let tried = setup::metal::open(flags).and_then(|opened| {
        let detail = try_device(Device::Metal, flags)?;
        Ok(format!("{detail}, {}", opened.describe()))
    });
    match tried {
        Ok(detail) => DeviceReport { name: "metal", works: true, detail },
        Err(error) => DeviceReport { name: "metal", works: false, detail: causes(&error) },
    }
}

/// Every NVIDIA GPU, or what is missing. A GPU that looks usable is tried like the CPU.
fn cuda() -> Vec<DeviceReport> {
    let report = |works, detail| DeviceReport { name: "cuda", works, detail };
    let found = match lily_cuda::devices() {
        Ok(found) => found,
        Err(missing) => return vec![report(false, missing.to_string())],
    };
    let tried = |gpu: lily_cuda::Found| {
        let number = u16::try_from(gpu.ordinal).unwrap_or(u16::MAX);
        match try_device(Device::Cuda(number), MetalFlags::default()) {
            Ok(detail) => {
                let (memory, embedded) = (setup::readable(gpu.memory), gpu.embedded());
                report(true, format!("{detail}, {memory} of memory; {embedded}"))
            }
            Err(error) => report(false, format!("{}; {}", causes(&error), gpu.embedded())),
        }
    };
    found.into_iter().map(tried).collect()
}

fn try_cpu() -> Result<String> {
    let detail = try_device(Device::Cpu, MetalFlags::default())?;
    let sets: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    Ok(format!("{detail}; this processor has {}", sets.join(", ")))
}

/// How far prefill and decode may be apart, of the largest logit: a GPU sums products of few rows in another order than tiles.
const APART: f32 = 1e-4;

/// Runs a few tokens of the demo model both ways and compares.
fn try_device(device: Device, metal: MetalFlags) -> Result<String> {
    let flags = ModelFlags {
        model: None,
        device,
        threads: None,
        isa: None,
        kernels: None,
        metal,
        precision: Some(Precision::Exact),
    };
    let (model, _) = setup::load_weights(None)?;
    let model = std::sync::Arc::new(model);
    let options = RunnerOptions { context: 64, max_chunk: 16, max_decode_rows: 1 };
    let mut runner = setup::choose(&flags, &model)?.runner(&model, options, 1 << 30)?;
    let started = Instant::now();
    let tokens: Vec<u32> = (0..16).map(|i| i * 37 % 1000).collect();
    let whole = runner.open()?;
    runner.prefill(whole, &tokens, LogitRows::Last)?;
    let prefilled = runner.logits(0).to_vec();
    let stepped = runner.open()?;
    for token in &tokens {
        runner.decode(&[(stepped, *token)])?;
    }
    let largest = prefilled.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let apart = if device == Device::Cpu { 0.0 } else { APART * largest };
    let agree = |(a, b): (&f32, &f32)| (a - b).abs() <= apart;
    ensure!(
        runner.logits(0).iter().zip(&prefilled).all(agree),
        "prefill and decode disagree on a short test: please report this machine"
    );
    use lily_model::device::Device as _;
    let seconds = started.elapsed().as_secs_f64();
    Ok(format!("{}; self-test passed in {seconds:.2} s", runner.device().describe()))
}
