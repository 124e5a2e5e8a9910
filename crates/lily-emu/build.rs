//! Compiles the text of every kernel, for every type of activations, with the emulator's runtime, into one library. A unit
//! whose source and command are those of the last time is left as it is.

#[cfg(feature = "emu")]
#[path = "build/units.rs"]
mod units;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Where the device cannot run, the crate says so itself.
    #[cfg(feature = "emu")]
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64")
    {
        units::build();
    }
}
