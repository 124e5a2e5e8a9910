//! Whole models on the GPU that is there, against the oracle: `check [--fixtures FOLDER] [--cubins FOLDER] [--json FILE]
//! [--only WORD] [--kernels shared] [--no-graphs] [--one-by-one]`. Needs the driver and NVRTC; no Rust. Prints 'N passed, N failed' last.
#![allow(clippy::unwrap_used)] // failures of checks, which are caught

mod graphs;
mod native;
mod set;

use std::path::PathBuf;
use std::process::ExitCode;

use lily_cuda::{Gpu, KernelSet};
use lily_model::testing::checks;
use set::Set;

fn options() -> Result<(Set, Option<String>, Option<PathBuf>), String> {
    let mut arguments = std::env::args().skip(1);
    let (mut fixtures, mut cubins, mut json) = (None, None, None);
    let (mut only, mut kernels, mut graphs, mut one_by_one) = (None, KernelSet::Native, true, false);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} takes a value"));
        match name.as_str() {
            "--fixtures" => fixtures = Some(PathBuf::from(value()?)),
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
    let fixtures = checks::fixtures(fixtures)?;
    let folder = |name| std::env::var_os(name).map(PathBuf::from);
    let toolkits: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder).collect();
    let gpu = Gpu::open(0, &toolkits).map_err(|missing| missing.to_string())?;
    Ok((Set { gpu, fixtures, cubins, kernels, graphs, one_by_one }, only, json))
}

fn run() -> Result<(usize, usize), String> {
    let (set, only, json) = options()?;
    println!("{}", set.gpu.describe());
    let all = checks::all().into_iter().chain(graphs::all()).chain(native::all()).collect();
    let checks::Outcome { passed, failed, results } = checks::run(&set, all, only.as_deref());
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
