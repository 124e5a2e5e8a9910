//! Compiles texts with Apple's compiler, by `xcrun`, into files that are put into the program. Function constants stay open: pipelines are
//! made of these libraries as they are of those that macOS compiles. The build script has this on Macs only, the tests everywhere.

#![allow(dead_code, reason = "the build script of another system makes nothing")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Languages, newest first, each with the first system that runs what is compiled as it.
const LANGUAGES: [(&str, &str); 3] = [("4.0", "26.0"), ("3.2", "15.0"), ("3.1", "14.0")];

/// The language that has tensor operations.
const TENSORS: &str = "4.0";

/// Of what the compiler says, so many lines are told.
const LINES: usize = 6;

/// A text as it is compiled.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// The name of the text, which is that of its kernel.
    pub(crate) text: &'static str,
    /// The type of activations.
    pub(crate) activation: &'static str,
    /// Tiles are multiplied by tensor operations.
    pub(crate) tensors: bool,
    /// The whole source.
    pub(crate) source: String,
}

/// All texts, for all types of activations.
#[cfg(any(test, target_os = "macos"))]
pub(crate) fn units() -> Vec<Unit> {
    use lily_kernels::{Activation, bindings, metal_unit};

    let mut units = Vec::new();
    for text in bindings::TEXTS {
        for activation in Activation::ALL {
            for tensors in [false, true] {
                let source = metal_unit(text, activation, tensors);
                units.push(Unit { text: text.name, activation: activation.name(), tensors, source });
            }
        }
    }
    units
}

/// What was compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// The language, by its version; empty where nothing was.
    pub(crate) language: &'static str,
    /// The compiler, in its own words; or why nothing was compiled.
    pub(crate) words: String,
    /// Text, activations, tensor operations, and the file.
    pub(crate) libraries: Vec<(&'static str, &'static str, bool, PathBuf)>,
}

impl Made {
    /// Nothing, for this reason.
    pub(crate) fn none(why: &str) -> Self {
        Made { words: why.to_owned(), ..Made::default() }
    }

    /// What `src/offline.rs` takes in.
    pub(crate) fn rust(&self) -> String {
        let mut out = String::from("Offline {\n");
        let _ = writeln!(
            out,
            "    language: {:?},\n    words: {:?},\n    libraries: &[",
            self.language, self.words
        );
        for (text, activation, tensors, file) in &self.libraries {
            let bytes = format!("include_bytes!({:?})", file.display().to_string());
            let _ = writeln!(
                out,
                "        Library {{ text: {text:?}, activation: {activation:?}, tensors: {tensors}, bytes: {bytes} }},"
            );
        }
        out.push_str("    ],\n}\n");
        out
    }
}

/// Runs it, to its standard output; or what went wrong.
fn run(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let said = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        text.lines().take(LINES).collect::<Vec<_>>().join("\n")
    };
    match done.status.success() {
        true => Ok(said(&done.stdout)),
        false => Err(format!("{} ({})", said(&done.stderr), done.status)),
    }
}

fn tool(xcrun: &Path, name: &str) -> Command {
    let mut command = Command::new(xcrun);
    command.args(["-sdk", "macosx", name]);
    command
}

/// One text to a library, which is a file of its own: kernels have one name for all types of activations.
fn compile(
    xcrun: &Path,
    folder: &Path,
    unit: &Unit,
    (language, system): (&str, &str),
) -> Result<PathBuf, String> {
    let Unit { text, activation, tensors, source } = unit;
    let name = format!("{text}-{activation}{}", if *tensors { "-tensors" } else { "" });
    let file = |kind: &str| folder.join(format!("{name}.{kind}"));
    let (from, air, library) = (file("metal"), file("air"), file("metallib"));
    std::fs::write(&from, source).map_err(|error| format!("{}: {error}", from.display()))?;
    // As macOS compiles them for the device: without fast math, and with precise functions.
    let options = [
        format!("-std=metal{language}"),
        format!("-mmacosx-version-min={system}"),
        "-fno-fast-math".to_owned(),
    ];
    run(tool(xcrun, "metal").args(options).arg("-c").arg(&from).arg("-o").arg(&air))?;
    run(tool(xcrun, "metallib").arg(&air).arg("-o").arg(&library))?;
    Ok(library)
}

/// Compiles all, as the newest language that the compiler knows, several at the same time. With tensor operations only those that
/// it takes: the others are compiled when a program starts on a GPU that has them.
///
/// # Errors
/// Where there is no compiler, or it does not take a text, in its words.
pub(crate) fn make(xcrun: &Path, folder: &Path, units: &[Unit]) -> Result<Made, String> {
    let words = run(tool(xcrun, "metal").arg("--version")).map_err(|why| {
        format!("there is no Metal compiler (`xcodebuild -downloadComponent MetalToolchain` gets it where Xcode is): {why}")
    })?;
    let words = words.lines().next().unwrap_or("a compiler without a name").to_owned();
    let first = units.iter().find(|unit| !unit.tensors).ok_or("there are no texts")?;
    let mut refused = String::new();
    let language = LANGUAGES.into_iter().find(|language| {
        let tried = compile(xcrun, folder, first, *language);
        tried.map_err(|why| refused = format!("{} as Metal {}: {why}", first.text, language.0)).is_ok()
    });
    let language = language.ok_or_else(|| format!("{words} takes no text: {refused}"))?;
    let wanted: Vec<&Unit> = units.iter().filter(|unit| !unit.tensors || language.0 == TENSORS).collect();
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(unit) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let compiled = compile(xcrun, folder, unit, language);
            if let Ok(mut made) = made.lock() {
                made.push((*unit, compiled));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut made = made.into_inner().map_err(|_| "a thread that compiles panicked")?;
    made.sort_by_key(|(unit, _)| (unit.text, unit.activation, unit.tensors));
    let mut libraries = Vec::new();
    for (unit, compiled) in made {
        match compiled {
            Ok(file) => libraries.push((unit.text, unit.activation, unit.tensors, file)),
            Err(_) if unit.tensors => {}
            Err(why) => {
                return Err(format!("{words} does not take {} ({}): {why}", unit.text, unit.activation));
            }
        }
    }
    Ok(Made { language: language.0, words, libraries })
}
