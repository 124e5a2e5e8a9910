//! Whole models on the GPU that is there, against the oracle: `check [--fixtures FOLDER] [--cubins FOLDER] [--json FILE]
//! [--only WORD] [--kernels shared] [--no-graphs] [--one-by-one]`. Needs the driver and NVRTC; no Rust. Prints 'N passed, N failed' last.
#![allow(clippy::unwrap_used)] // failures of checks, which are caught

mod bits;
mod goldens;
mod native;
mod set;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use lily_cuda::{Gpu, KernelSet};
use set::Set;

/// What a check is called, and what it does: a sentence for people, or a panic.
pub(crate) type Check = (String, Box<dyn Fn(&Set) -> String>);

/// What the last panic said.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn options() -> Result<(Set, Option<String>, Option<PathBuf>), String> {
    let mut arguments = std::env::args().skip(1);
    let (mut fixtures, mut cubins, mut json) = (PathBuf::from("tests/fixtures"), None, None);
    let (mut only, mut kernels, mut graphs, mut one_by_one) = (None, KernelSet::Native, true, false);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} takes a value"));
        match name.as_str() {
            "--fixtures" => fixtures = PathBuf::from(value()?),
            "--cubins" => cubins = Some(PathBuf::from(value()?)),
            "--json" => json = Some(PathBuf::from(value()?)),
            "--only" => only = Some(value()?),
            "--kernels" => match value()?.as_str() {
                "native" => kernels = KernelSet::Native,
                "shared" => kernels = KernelSet::Shared,
                other => return Err(format!("--kernels {other}: wanted native or shared")),
            },
            "--no-graphs" => graphs = false,
            "--one-by-one" => one_by_one = true,
            _ => return Err(format!("{name} is not known: see the head of examples/check/main.rs")),
        }
    }
    if !fixtures.join("nano").is_dir() {
        return Err(format!("{} holds no models: name tests/fixtures by --fixtures", fixtures.display()));
    }
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder).collect();
    let gpu = Gpu::open(0, &toolkits).map_err(|missing| missing.to_string())?;
    Ok((Set { gpu, fixtures, cubins, kernels, graphs, one_by_one }, only, json))
}

fn run() -> Result<(usize, usize), String> {
    let (set, only, json) = options()?;
    println!("{}", set.gpu.describe());
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
        let place = panic.location().map_or(String::new(), |l| format!("{}:{}: ", l.file(), l.line()));
        *PANIC.lock().unwrap() = format!("{place}{text}");
    }));
    let checks = goldens::all().into_iter().chain(bits::all()).chain(native::all());
    let (mut passed, mut failed, mut results) = (0, 0, Vec::new());
    for (name, check) in checks.filter(|(name, _)| only.as_ref().is_none_or(|word| name.contains(word))) {
        let began = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| check(&set)));
        let seconds = began.elapsed().as_secs_f64();
        let (word, detail) = match &done {
            Ok(detail) => ("ok  ", detail.clone()),
            Err(_) => ("FAIL", PANIC.lock().unwrap().clone()),
        };
        *if done.is_ok() { &mut passed } else { &mut failed } += 1;
        println!("{word} {name}: {detail} ({seconds:.1} s)");
        results.push(serde_json::json!({
            "name": name, "ok": done.is_ok(), "seconds": seconds, "detail": detail,
        }));
    }
    if let Some(file) = json {
        let report = serde_json::json!({
            "device": set.gpu.describe(), "kernels": format!("{:?}", set.kernels), "graphs": set.graphs, "one_by_one": set.one_by_one,
            "passed": passed, "failed": failed, "checks": results,
        });
        let text = serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?;
        std::fs::write(&file, text + "\n").map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok((passed, failed))
}

fn main() -> ExitCode {
    let (passed, failed) = run().unwrap_or_else(|error| {
        println!("{error}");
        (0, 1)
    });
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A check by its name.
pub(crate) fn check(name: impl Into<String>, run: impl Fn(&Set) -> String + 'static) -> Check {
    (name.into(), Box::new(run))
}
