//! The checks of kernels and whole models on the GPU of this Mac (`lily_metal::checking`): `mac_check [--fixtures FOLDER] [--only WORD]
//! [--queue auto|classic|metal4] [--json FILE]`. Prints 'N passed, N failed' last; `scripts/mac-check` runs it.

use std::process::ExitCode;

#[cfg(target_os = "macos")]
fn main() -> ExitCode {
    let gpu = lily_metal::apple::AppleGpu::open(None).map_err(|missing| missing.to_string());
    lily_metal::checking::main(gpu, Vec::new)
}

#[cfg(not(target_os = "macos"))]
fn main() -> ExitCode {
    println!("this is for macOS; here: cargo run -p lily-emu --features emu --example metal");
    println!("0 passed, 1 failed");
    ExitCode::FAILURE
}
