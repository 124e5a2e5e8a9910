//! Tells the program which commit it was built from, as `LILY_COMMIT`: measurements are kept by it.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn main() {
    // What is committed, and every file that may differ from it.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", name]).filter(|path| std::path::Path::new(path).exists())
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    for path in ["build.rs", "Cargo.toml", "../../Cargo.lock", "..", "../../assets"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let changed = git(&["status", "--porcelain", "-uno", "--", "..", "../../Cargo.lock", "../../assets"]);
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let suffix = if changed.is_some_and(|text| !text.is_empty()) { "-changed" } else { "" };
    println!("cargo:rustc-env=LILY_COMMIT={commit}{suffix}");
}
