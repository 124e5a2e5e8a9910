//! Compiles the kernels of a model's plans, shared and native, by NVRTC, without a GPU:
//! `compile ARCHITECTURE [PRESET [CUBINS [TOOLKIT]]] [--sample] [--bf16] [--plant]`, where PRESET is one of `lily plan --preset`, CUBINS a folder that
//! keeps the machine code (`-` for none), and TOOLKIT a folder with `lib` and `include`. `--sample` compiles each text once for each type of
//! activations, with the first sizes that a plan has, and wants every shared text to be among them: those of plans without each mechanism
//! as well. `--bf16` leaves float32 out, `--plant` plants a mistake in each text, which has to be refused. Prints 'N passed, N failed' last.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use lily_cuda::{Codes, Compiler, KernelSet, Origins, Variant, variants};
use lily_kernels::Text;
use lily_kernels::bindings::TEXTS;
use lily_model::plan::{
    self, Activation, DecodeShape, GatedNormPlace, Plan, PlanError, Profile, Switch, Switches, Tail, Target,
};
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

/// The profile of a GPU; for a sample also those that between them have every text.
fn profiles(activation: Activation, is_sample: bool) -> Result<Vec<Profile>, String> {
    let own = Profile::named("cuda").ok_or("no profile")?.with_activation(activation);
    let mut profiles = vec![own.clone()];
    if is_sample {
        profiles.push(own.clone().with_switches(Switches::NONE));
        for switch in Switch::ALL {
            profiles.push(own.clone().without(switch));
            profiles.push(own.clone().with_switches(own.switches.with(switch)));
        }
        for gated_norm in [GatedNormPlace::Stage, GatedNormPlace::Prologue] {
            profiles.push(Profile { gated_norm, ..own.clone() });
        }
    }
    Ok(profiles)
}

/// A text with a mistake in it.
fn planted(text: &'static Text) -> &'static Text {
    let source = format!("{}\nstatic int planted = no_such_name;\n", text.source).leak();
    Box::leak(Box::new(Text { source, ..*text }))
}

fn run() -> Result<(usize, usize), String> {
    let (flags, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|f| f == flag);
    let (is_sample, is_planted) = (has("--sample"), has("--plant"));
    let mut arguments = words.into_iter();
    let usage = "usage: compile ARCHITECTURE [PRESET [CUBINS [TOOLKIT]]] [--sample] [--bf16] [--plant]";
    if flags.iter().any(|f| !["--sample", "--bf16", "--plant"].contains(&f.as_str())) {
        return Err(usage.to_owned());
    }
    let architecture = arguments.next().ok_or(usage)?;
    let name = arguments.next().unwrap_or_else(|| "qwen3.6-35b-a3b".to_owned());
    let cubins = arguments.next().filter(|folder| folder != "-").map(PathBuf::from);
    let toolkits: Vec<PathBuf> = arguments.next().map(PathBuf::from).into_iter().collect();
    let preset = Preset::named(&name).ok_or(format!("no preset {name}"))?;
    let weights = preset.weights().packed().0;
    let compiler = Arc::new(Compiler::find(&toolkits).map_err(|e| e.to_string())?);
    let nvrtc = compiler.version().to_owned();
    let origins = Origins { pack: None, compiler: Ok(compiler) };
    let codes = Codes::new(origins, cubins, architecture.clone(), Some(Arc::new(|_| ())));
    let (mut passed, mut failed) = (0, 0);
    let both = [Activation::Bf16, Activation::F32];
    for activation in both.into_iter().filter(|a| *a == Activation::Bf16 || !has("--bf16")) {
        let mut found: Vec<Variant> = Vec::new();
        for profile in profiles(activation, is_sample)? {
            let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
            for plan in plans(target).map_err(|e| e.to_string())? {
                for set in [KernelSet::Shared, KernelSet::Native] {
                    for variant in variants(&plan, set, CORES) {
                        let is_same = |v: &Variant| {
                            if is_sample { v.text.path == variant.text.path } else { *v == variant }
                        };
                        if !found.iter().any(is_same) {
                            found.push(variant);
                        }
                    }
                }
            }
        }
        if is_sample {
            for text in TEXTS.iter().filter(|text| !found.iter().any(|v| v.text.path == text.path)) {
                failed += 1;
                println!("FAIL no plan has {} with {}", text.path, activation.name());
            }
        }
        if is_planted {
            for variant in &mut found {
                variant.text = planted(variant.text);
            }
        }
        let began = Instant::now();
        match codes.of(&found) {
            Ok(made) => {
                passed += made.len();
                let (bytes, seconds) =
                    (made.iter().map(Vec::len).sum::<usize>(), began.elapsed().as_secs_f64());
                println!(
                    "{architecture}, NVRTC {nvrtc}, {}: {} kernels, {bytes} bytes, {seconds:.1} s",
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
