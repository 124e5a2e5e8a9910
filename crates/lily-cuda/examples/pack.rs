//! Compiles what a release carries and writes it as one pack, without a GPU: `pack OUT DEMO [--toolkit FOLDER] [--cubins FOLDER]
//! [--demo-only] [--shared] ARCHITECTURE...`. In the pack are the kernels that answers of qwen3.6-35b-a3b launch with bf16 activations, those of the
//! demo model in the folder DEMO (whose self-test, which `lily doctor` runs, takes float32), and those that measure a GPU's limits;
//! `--demo-only` leaves the large model out, `--shared` the device's own texts. Prints 'N passed, N failed' last.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use lily_cuda::{Codes, Compiler, Origins, Packer, Variant, answers, roof_unit};
use lily_model::plan::{Activation, Profile};
use lily_model::{Model, Preset};

/// Rows of the demo model's chunks, and those of the self-test.
const DEMO_ROWS: usize = 512;
const SELF_TEST_ROWS: usize = 16;

struct Flags {
    out: PathBuf,
    demo: PathBuf,
    toolkits: Vec<PathBuf>,
    cubins: Option<PathBuf>,
    is_demo_only: bool,
    is_shared: bool,
    architectures: Vec<String>,
}

fn flags() -> Result<Flags, String> {
    let usage =
        "usage: pack OUT DEMO [--toolkit FOLDER] [--cubins FOLDER] [--demo-only] [--shared] ARCHITECTURE...";
    let (mut words, mut toolkits, mut cubins) = (Vec::new(), Vec::new(), None);
    let (mut is_demo_only, mut is_shared) = (false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut folder = || arguments.next().map(PathBuf::from).ok_or(usage);
        match argument.as_str() {
            "--toolkit" => toolkits.push(folder()?),
            "--cubins" => cubins = Some(folder()?),
            "--demo-only" => is_demo_only = true,
            "--shared" => is_shared = true,
            flag if flag.starts_with("--") => return Err(format!("{flag}? {usage}")),
            _ => words.push(argument),
        }
    }
    if words.len() < 3 {
        return Err(usage.to_owned());
    }
    let architectures = words.split_off(2);
    let wrong = architectures.iter().find(|name| !name.starts_with("sm_"));
    if let Some(name) = wrong {
        return Err(format!("{name} is no architecture; wanted such as sm_90a"));
    }
    let [out, demo] = [&words[0], &words[1]].map(PathBuf::from);
    Ok(Flags { out, demo, toolkits, cubins, is_demo_only, is_shared, architectures })
}

/// Every kernel that the pack is to have.
fn variants(demo: &Path, is_demo_only: bool) -> Result<Vec<Variant>, String> {
    let profile = Profile::named("cuda").ok_or("no profile")?;
    let model = Model::open(demo).map_err(|e| format!("{}: {e}", demo.display()))?;
    let packed = model.weights.packed().0;
    let of_demo = |activation, rows| {
        let profile = profile.clone().with_activation(activation);
        answers(&model.geometry, &packed, &profile, rows).map_err(|e| e.to_string())
    };
    let mut variants = of_demo(Activation::Bf16, DEMO_ROWS)?;
    variants.extend(of_demo(Activation::F32, SELF_TEST_ROWS)?);
    if !is_demo_only {
        let preset = Preset::named("qwen3.6-35b-a3b").ok_or("no preset")?;
        let packed = preset.weights().packed().0;
        let large = answers(&preset.geometry, &packed, &profile, profile.prefill_chunk);
        variants.extend(large.map_err(|e| e.to_string())?);
    }
    let mut different: Vec<Variant> = Vec::new();
    for variant in variants {
        if !different.contains(&variant) {
            different.push(variant);
        }
    }
    Ok(different)
}

fn run() -> Result<usize, String> {
    let flags = flags()?;
    let compiler = Arc::new(Compiler::find(&flags.toolkits).map_err(|e| e.to_string())?);
    let mut variants = variants(&flags.demo, flags.is_demo_only)?;
    variants.retain(|variant| !flags.is_shared || !variant.text.path.ends_with(".cu"));
    let mut packer = Packer::new(compiler.version());
    let mut count = 0;
    for architecture in &flags.architectures {
        let began = Instant::now();
        let origins = Origins { pack: None, compiler: Ok(compiler.clone()) };
        let codes = Codes::new(origins, flags.cubins.clone(), architecture.clone(), None);
        let made = codes.of(&variants).map_err(|e| e.to_string())?;
        for (variant, code) in variants.iter().zip(&made) {
            let (source, options) = variant.unit(architecture);
            packer.add(architecture, &source, &options, code);
        }
        let (source, options) = roof_unit(architecture);
        let roof = compiler.compile(&source, &options);
        let roof = roof.map_err(|log| format!("NVRTC does not compile roof.cu for {architecture}: {log}"))?;
        packer.add(architecture, &source, &options, &roof);
        count += made.len() + 1;
        let (bytes, seconds) = (made.iter().map(Vec::len).sum::<usize>(), began.elapsed().as_secs_f64());
        println!("{architecture}: {} kernels, {bytes} bytes, {seconds:.1} s", made.len() + 1);
    }
    let pack = packer.finish();
    std::fs::write(&flags.out, &pack).map_err(|e| format!("{}: {e}", flags.out.display()))?;
    println!(
        "{}: {count} kernels of NVRTC {}, {} bytes",
        flags.out.display(),
        compiler.version(),
        pack.len()
    );
    Ok(count)
}

fn main() -> ExitCode {
    match run() {
        Ok(count) => {
            println!("{count} passed, 0 failed");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}
