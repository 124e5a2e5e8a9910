//! A folder that holds something else where a file should be.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::fixture;
use lily_text::TextModel;

const FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// A folder of the fixture's files behind links, without one of them.
fn folder_without(test: &str, missing: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{missing}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for name in FILES.iter().filter(|name| **name != missing) {
        symlink(fixture("nano").join(name).canonicalize().unwrap(), folder.join(name)).unwrap();
    }
    folder
}

fn refusal(folder: &Path, name: &str) -> String {
    let message = TextModel::from_dir(folder).unwrap_err().to_string();
    assert!(message.contains(name), "{message:?} does not name {name}");
    message
}

#[test]
fn links_to_files_are_files() {
    TextModel::from_dir(&folder_without("links", "")).unwrap();
    TextModel::from_dir(&folder_without("links", "tokenizer_config.json")).unwrap();
}

/// A pipe would be waited for, and a device read until the memory is full.
#[test]
fn only_regular_files_are_opened() {
    for name in FILES {
        let folder = folder_without("irregular", name);
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        assert!(refusal(&folder, name).contains("not a regular file"));
        fs::remove_dir(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        assert!(refusal(&folder, name).contains("not a regular file"));
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert!(refusal(&folder, name).contains("not a regular file"));
    }
}

#[test]
fn a_link_to_nothing_is_not_an_absent_file() {
    for name in FILES {
        let folder = folder_without("dangling", name);
        symlink("nothing", folder.join(name)).unwrap();
        refusal(&folder, name);
    }
}

#[test]
fn files_of_absurd_size_are_not_read() {
    for name in FILES {
        let folder = folder_without("large", name);
        File::create(folder.join(name)).unwrap().set_len(200 << 30).unwrap();
        assert!(refusal(&folder, name).contains("214748364800"));
    }
}
