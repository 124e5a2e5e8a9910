//! The units, the compiler, and the table of what was compiled.

#![allow(clippy::unwrap_used, reason = "a build script fails by panicking")]

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

use lily_kernels::{Activation, bindings, emulator_symbol, emulator_unit};

/// The oldest clang whose `__bf16` computes.
const CLANG: u32 = 19;

/// As in `scripts/test-kernels`: each operation of half and bfloat is rounded, as a GPU does, and what becomes one
/// multiply-add stands in the text.
const OPTIONS: &[&str] = &[
    "-std=c++20",
    "-g1",
    "-fPIC",
    "-Wall",
    "-Wno-unknown-attributes",
    "-Wno-unused-function",
    "-Wno-unused-variable",
    "-Wno-unused-const-variable",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-march=x86-64-v3",
    "-ffp-contract=off",
];

/// Of the texts when each access is recorded, up to 16 bytes wide.
const RECORDING: &[&str] = &[
    "-O1",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-mprefer-vector-width=128",
    "-fsanitize-coverage=func,trace-loads,trace-stores",
];

struct Unit {
    source: PathBuf,
    object: PathBuf,
    is_text: bool,
}

pub(crate) fn build() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let runtime = root.join("../lily-kernels/shims/emu").canonicalize().unwrap();
    for path in ["build", "bridge.cpp"].map(|p| root.join(p)).iter().chain([&runtime]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    for variable in ["CLANGXX", "AR", "PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let compiler = compiler();
    let objects = out.join("objects");
    fs::create_dir_all(&objects).unwrap();

    let mut units = Vec::new();
    let mut unit = |source: PathBuf, is_text| {
        let name = source.file_stem().unwrap().to_string_lossy().into_owned();
        units.push(Unit { source, object: objects.join(format!("{name}.o")), is_text });
    };
    for text in bindings::TEXTS {
        for activation in Activation::ALL {
            let path = objects.join(format!("{}_{}.cpp", text.name, activation.name()));
            write_if_new(&path, &emulator_unit(text, activation));
            unit(path, true);
        }
    }
    for name in ["runtime.cpp", "touch.cpp"] {
        unit(runtime.join(name), false);
    }
    unit(root.join("bridge.cpp"), false);

    let headers = headers(&runtime);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            compile(&compiler, &runtime, headers, unit);
        }
    };
    thread::scope(|scope| {
        let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1usize);
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });

    let library = out.join("liblily_emu_texts.a");
    let _ = fs::remove_file(&library);
    let archiver = env::var("AR").unwrap_or_else(|_| "ar".to_owned());
    let objects = units.iter().map(|u| &u.object);
    run(Command::new(archiver).arg("crs").arg(&library).args(objects), "the archiver (binutils, or $AR)");
    fs::write(out.join("texts.rs"), table()).unwrap();
    link(&compiler, &out);
}

/// Rust's view of the library: each kernel by the name of its text and its activations.
fn table() -> String {
    let mut symbols = String::new();
    let mut rows = String::new();
    for text in bindings::TEXTS {
        for activation in Activation::ALL {
            let symbol = emulator_symbol(text, activation);
            let _ = writeln!(symbols, "    static {symbol}: Entry;");
            let _ = writeln!(
                rows,
                "        ({:?}, lily_kernels::Activation::{activation:?}, &raw const {symbol}),",
                text.name
            );
        }
    }
    format!(
        "unsafe extern \"C\" {{\n{symbols}}}\n/// Every kernel that was compiled.\nfn entries() -> Vec<(&'static str, \
         lily_kernels::Activation, *const Entry)> {{\n    vec![\n{rows}    ]\n}}\n"
    )
}

/// The library and what it needs: C++'s own, and conversions to bfloat, which libgcc has only since GCC 13.
fn link(compiler: &str, out: &Path) {
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=lily_emu_texts");
    let builtins =
        Command::new(compiler).args(["--rtlib=compiler-rt", "-print-libgcc-file-name"]).output().unwrap();
    let builtins = PathBuf::from(String::from_utf8_lossy(&builtins.stdout).trim());
    let found = builtins.parent().zip(builtins.file_stem()).filter(|_| builtins.is_file());
    let Some((folder, name)) = found else {
        panic!(
            "{compiler} has no compiler-rt builtins ({} is no file): install libclang-rt-{CLANG}-dev",
            builtins.display()
        );
    };
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rustc-link-lib=static={}", name.to_string_lossy().trim_start_matches("lib"));
    println!("cargo::rustc-link-lib=stdc++");
}

/// `$CLANGXX`, or the first clang++ on the path that is new enough.
fn compiler() -> String {
    let asked = env::var("CLANGXX").ok().filter(|name| !name.is_empty());
    let names = match &asked {
        Some(name) => vec![name.clone()],
        None => [format!("clang++-{CLANG}"), "clang++".to_owned()]
            .into_iter()
            .chain((CLANG + 1..CLANG + 12).map(|version| format!("clang++-{version}")))
            .collect(),
    };
    let version = |name: &String| {
        let output = Command::new(name).arg("-dumpversion").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split('.').next()?.trim().parse::<u32>().ok()
    };
    match names.iter().find(|name| version(name).is_some_and(|v| v >= CLANG)) {
        Some(name) => name.clone(),
        None => panic!(
            "the feature `emu` compiles the kernels with clang++ {CLANG} or later, and {} is not: install it (Debian, Ubuntu: \
             apt-get install clang-{CLANG} libclang-rt-{CLANG}-dev), or name it in $CLANGXX",
            names.join(", ")
        ),
    }
}

/// What all units include, as one number.
fn headers(folder: &Path) -> u64 {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    files.iter().for_each(|path| fs::read(path).unwrap().hash(&mut hasher));
    hasher.finish()
}

fn compile(compiler: &str, runtime: &Path, headers: u64, unit: &Unit) {
    let mut command = Command::new(compiler);
    command.args(OPTIONS).arg("-I").arg(runtime).arg("-c").arg(&unit.source);
    let records = cfg!(feature = "touch");
    if records {
        command.arg("-DRECORD_TOUCH");
    }
    command.args(if records && unit.is_text { RECORDING } else { &["-O2"] }).arg("-o").arg(&unit.object);
    let mut hasher = DefaultHasher::new();
    (format!("{command:?}"), headers, fs::read(&unit.source).unwrap()).hash(&mut hasher);
    let (stamp, key) = (unit.object.with_extension("key"), format!("{:016x}", hasher.finish()));
    if unit.object.is_file() && fs::read_to_string(&stamp).is_ok_and(|old| old == key) {
        return;
    }
    let _ = fs::remove_file(&stamp);
    run(&mut command, "clang++");
    fs::write(stamp, key).unwrap();
}

fn run(command: &mut Command, what: &str) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{what}: {status}\n{command:?}"),
        Err(error) => panic!("{what}: {error}\n{command:?}"),
    }
}

fn write_if_new(path: &Path, text: &str) {
    if !fs::read_to_string(path).is_ok_and(|old| old == text) {
        fs::write(path, text).unwrap();
    }
}
