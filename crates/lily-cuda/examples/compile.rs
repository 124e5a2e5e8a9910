//! Compiles the kernels of a model's plans, shared and native, by NVRTC, without a GPU: `compile ARCHITECTURE [PRESET [CUBINS [TOOLKIT]]]`, where PRESET
//! is one of `lily plan --preset`, CUBINS a folder that keeps the machine code, and TOOLKIT a folder with `lib` and `include`.
//! Prints 'N passed, N failed' last.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use lily_cuda::{Codes, Compiler, KernelSet, Variant, launches};
use lily_model::plan::{self, Activation, DecodeShape, Plan, PlanError, Profile, Tail, Target};
use lily_model::{LogitRows, Preset};

/// Multiprocessors of the GPU that launches are shaped for.
const CORES: usize = 132;

/// Plans that between them launch what answers launch.
fn plans(target: Target<'_>) -> Result<Vec<Plan>, PlanError> {
    let mut plans = Vec::new();
    for rows in [1, 2, 17, 64, 256, 512, 4096] {
        plans.push(plan::prefill(target, rows, 4096, LogitRows::Last)?);
    }
    for slots in 1..=4 {
        for context in [256, 4096] {
            plans.push(plan::decode(target, DecodeShape::logits(slots, context))?);
            let tail = Tail::Select { entries: slots };
            plans.push(plan::decode(target, DecodeShape { tail, ..DecodeShape::logits(slots, context) })?);
        }
    }
    Ok(plans)
}

fn run() -> Result<(usize, usize), String> {
    let mut arguments = std::env::args().skip(1);
    let architecture = arguments.next().ok_or("usage: compile ARCHITECTURE [PRESET [CUBINS [TOOLKIT]]]")?;
    let name = arguments.next().unwrap_or_else(|| "qwen3.6-35b-a3b".to_owned());
    let cubins = arguments.next().map(PathBuf::from);
    let toolkits: Vec<PathBuf> = arguments.next().map(PathBuf::from).into_iter().collect();
    let preset = Preset::named(&name).ok_or(format!("no preset {name}"))?;
    let weights = preset.weights().packed().0;
    let compiler = Arc::new(Compiler::find(&toolkits).map_err(|e| e.to_string())?);
    let codes = Codes::new(compiler, cubins, architecture.clone(), Some(Arc::new(|_| ())));
    let (mut passed, mut failed) = (0, 0);
    for activation in [Activation::Bf16, Activation::F32] {
        let profile = Profile::named("cuda").ok_or("no profile")?.with_activation(activation);
        let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
        let mut variants: Vec<Variant> = Vec::new();
        for plan in plans(target).map_err(|e| e.to_string())? {
            for launch in plan.launches.iter().filter(|l| !l.on_host) {
                for set in [KernelSet::Shared, KernelSet::Native] {
                    for dispatch in launches(&launch.kernel, activation, set, CORES) {
                        let variant = Variant::of(&dispatch, activation);
                        if !variants.contains(&variant) {
                            variants.push(variant);
                        }
                    }
                }
            }
        }
        let began = Instant::now();
        match codes.of(&variants) {
            Ok(made) => {
                passed += made.len();
                let (bytes, seconds) =
                    (made.iter().map(Vec::len).sum::<usize>(), began.elapsed().as_secs_f64());
                println!(
                    "{architecture}, NVRTC {}, {}: {} kernels, {bytes} bytes, {seconds:.1} s",
                    codes.compiler(),
                    activation.name(),
                    made.len()
                );
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {error}");
            }
        }
    }
    Ok((passed, failed))
}

fn main() -> ExitCode {
    let (passed, failed) = run().unwrap_or_else(|error| {
        eprintln!("{error}");
        (0, 1)
    });
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
