#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::build::{self, Made, Unit, make};
use super::*;
use crate::fake::FakeGpu;
use crate::gpu::Language;

/// An `xcrun` of straw, which knows these languages and compiles a source to "paper:" and its first word; `calls` is where it says what
/// it was asked.
fn xcrun(folder: &Path, languages: &str, broken: &str) -> PathBuf {
    let file = folder.join("xcrun");
    let script = format!(
        r#"#!/bin/sh
echo "$*" >>"{folder}/calls"
[ "$1 $2" = "-sdk macosx" ] || exit 64
shift 2
kind=$1
shift
if [ "$1" = --version ]; then echo "Apple metal version 1.2 (straw)"; echo "Target: air64"; exit 0; fi
for last; do :; done
case $kind in
metal)
  case " {languages} " in *" $1 "*) ;; *) echo "error: invalid value '$1' in '-std='" >&2; exit 1 ;; esac
  [ "$3 $4" = "-fno-fast-math -c" ] || exit 65
  if grep -q "{broken}" "$5"; then echo "$5:7:1: error: of straw" >&2; exit 1; fi
  printf 'air of ' >"$last"; cat "$5" >>"$last" ;;
metallib) printf 'paper:' >"$last"; sed 's/^air of //' "$1" >>"$last" ;;
*) exit 66 ;;
esac
"#,
        folder = folder.display(),
    );
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    file
}

fn units() -> Vec<Unit> {
    let unit = |text, activation, tensors| {
        let source = format!("{activation} {text}{}", if tensors { " tensors" } else { "" });
        Unit { text, activation, tensors, source }
    };
    let of = |text| [unit(text, "f32", false), unit(text, "bf16", false), unit(text, "bf16", true)];
    ["rms_norm", "embed"].into_iter().flat_map(of).collect()
}

fn names(made: &Made) -> Vec<String> {
    let name = |(text, activation, tensors, _): &(&str, &str, bool, PathBuf)| {
        format!("{text} {activation} {tensors}")
    };
    made.libraries.iter().map(name).collect()
}

#[test]
fn texts_are_compiled_as_the_newest_language_that_the_compiler_knows() {
    let folder = tempfile::tempdir().unwrap();
    let all = xcrun(folder.path(), "-std=metal4.0 -std=metal3.2 -std=metal3.1", "no such words");
    let made = make(&all, folder.path(), &units()).unwrap();
    assert_eq!((made.language, &*made.words), ("4.0", "Apple metal version 1.2 (straw)"));
    assert_eq!(
        names(&made),
        [
            "embed bf16 false",
            "embed bf16 true",
            "embed f32 false",
            "rms_norm bf16 false",
            "rms_norm bf16 true",
            "rms_norm f32 false"
        ]
    );
    assert_eq!(fs::read_to_string(&made.libraries[4].3).unwrap(), "paper:bf16 rms_norm tensors");
    let rust = made.rust();
    assert!(
        rust.contains("language: \"4.0\"") && rust.contains("tensors: true, bytes: include_bytes!(\"/"),
        "{rust}"
    );
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
    assert!(calls.contains("metal -std=metal4.0 -mmacosx-version-min=26.0 -fno-fast-math -c"), "{calls}");

    let old = xcrun(folder.path(), "-std=metal3.2 -std=metal3.1", "no such words");
    let made = make(&old, folder.path(), &units()).unwrap();
    assert_eq!((made.language, made.libraries.len()), ("3.2", 4), "without tensor operations");
}

#[test]
fn every_text_is_compiled_for_every_type_of_activations() {
    let folder = tempfile::tempdir().unwrap();
    let xcrun = xcrun(folder.path(), "-std=metal3.1", "no such words");
    let made = make(&xcrun, folder.path(), &build::units()).unwrap();
    assert_eq!(made.libraries.len(), 3 * bindings::TEXTS.len());
    let is_bf16 =
        |(text, activation, ..): &&(&str, &str, bool, PathBuf)| (*text, *activation) == ("rms_norm", "bf16");
    let file = &made.libraries.iter().find(is_bf16).unwrap().3;
    let source = metal_unit(&bindings::rms_norm::TEXT, Activation::Bf16, false);
    assert_eq!(fs::read_to_string(file).unwrap(), format!("paper:{source}"));
}

#[test]
fn without_a_compiler_or_with_a_text_that_it_does_not_take_there_is_nothing_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let absent = make(&folder.path().join("no-xcrun"), folder.path(), &units()).unwrap_err();
    assert!(absent.contains("no Metal compiler") && absent.contains("no-xcrun"), "{absent}");

    // Command line tools alone have an `xcrun`, and no Metal.
    let stub = folder.path().join("stub");
    fs::write(&stub, "#!/bin/sh\necho 'xcrun: error: unable to find utility \"metal\"' >&2\nexit 72\n")
        .unwrap();
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
    let tools = make(&stub, folder.path(), &units()).unwrap_err();
    assert!(tools.contains("unable to find utility") && tools.contains("72"), "{tools}");

    let older = xcrun(folder.path(), "-std=metal2.4", "no such words");
    let refused = make(&older, folder.path(), &units()).unwrap_err();
    assert!(
        refused.contains("takes no text") && refused.contains("invalid value '-std=metal3.1'"),
        "{refused}"
    );

    let broken = xcrun(folder.path(), "-std=metal3.1", "embed");
    let refused = make(&broken, folder.path(), &units()).unwrap_err();
    assert!(
        refused.contains("does not take embed (bf16)") && refused.contains("error: of straw"),
        "{refused}"
    );

    // Tensor operations that it does not take are compiled by macOS, where a GPU has them.
    let partly = xcrun(folder.path(), "-std=metal4.0", "tensors");
    assert_eq!(make(&partly, folder.path(), &units()).unwrap().libraries.len(), 4);
    assert_eq!(
        Made::none("why").rust(),
        "Offline {\n    language: \"\",\n    words: \"why\",\n    libraries: &[\n    ],\n}\n"
    );
}

/// Of one text alone.
fn offline(language: &'static str, bytes: &'static [u8]) -> Offline {
    let library = Library { text: "rms_norm", activation: "f32", tensors: false, bytes };
    Offline { language, words: "of paper", libraries: Box::leak(Box::new([library])) }
}

#[test]
fn a_library_of_the_program_is_taken_where_the_system_takes_it_and_else_the_source() {
    let text = &bindings::rms_norm::TEXT;
    let dialect = Dialect { language: Language::V3_2, tensors: false };
    let counts = |offline: &Offline, text, activation, dialect| {
        let gpu = FakeGpu::new();
        offline.library(&gpu, text, activation, dialect).unwrap();
        (gpu.precompiled(), gpu.compiled().0)
    };
    let good = offline("3.2", b"paper:f32 rms_norm");
    assert_eq!(counts(&good, text, Activation::F32, dialect), (1, 0));
    for other in [
        counts(&good, text, Activation::Bf16, dialect),
        counts(&good, &bindings::embed::TEXT, Activation::F32, dialect),
        counts(&good, text, Activation::F32, Dialect { tensors: true, ..dialect }),
        counts(&good, text, Activation::F32, Dialect { language: Language::V4_0, ..dialect }),
        counts(&offline("3.2", b"of another system"), text, Activation::F32, dialect),
        counts(Offline::embedded(), text, Activation::F32, dialect),
    ] {
        assert_eq!(other, (0, 1));
    }
}

#[test]
fn a_program_says_where_its_kernels_come_from() {
    let gpu = FakeGpu::new();
    let said = |offline: &Offline, language| offline.describe(&gpu, Dialect { language, tensors: false });
    let good = offline("3.2", b"paper:f32 rms_norm");
    assert_eq!(said(&good, Language::V3_2), "kernels compiled with the program (Metal 3.2, of paper)");
    for (offline, why) in [
        (good, "the program has them as Metal 3.2, and the system takes 4.0"),
        (offline("4.0", b"of another system"), "the system does not take the program's: no library of paper"),
        (*Offline::embedded(), "none were compiled with the program: it was built on "),
    ] {
        let said = said(&offline, Language::V4_0);
        assert!(said.starts_with("kernels compiled at the start (") && said.contains(why), "{said}");
    }
}
