//! Writes what tests of the texts outside of Rust need: `kernel_cases FOLDER [NAME...]` makes `FOLDER/cases.txt` and
//! `cases.bin` (of kernels whose text has one of the names, or of all), and `FOLDER/units/NAME_ACT.cpp`, each text with what makes it callable in the
//! emulator, and `NAME.metal`, each text alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs, io};

use lily_kernels::{Activation, bindings, emulator_unit, testing};

/// Makes a folder hold these files and no others. A file that has its content already is left alone, so that what was made
/// of it stays valid.
fn fill(folder: &Path, files: &BTreeMap<String, String>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !files.contains_key(&*entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, content) in files {
        let path = folder.join(name);
        if !fs::read_to_string(&path).is_ok_and(|old| old == *content) {
            fs::write(&path, content)?;
        }
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let Some(folder) = arguments.next() else {
        return Err(io::Error::other("usage: kernel_cases FOLDER [NAME...]"));
    };
    let names: Vec<String> = arguments.collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let folder = Path::new(&folder);
    let mut units = BTreeMap::new();
    let mut cases = testing::gpu_cases();
    cases.retain(|c| wanted(c.dispatch().text.name));
    for text in bindings::TEXTS.iter().filter(|t| wanted(t.name)) {
        units.insert(format!("{}.metal", text.name), text.source.to_owned());
        for activation in Activation::ALL {
            let tested =
                |c: &testing::Case| c.dispatch().text.name == text.name && c.activation == activation;
            if cases.iter().any(tested) {
                let name = format!("{}_{}.cpp", text.name, activation.name());
                units.insert(name, emulator_unit(text, activation));
            }
        }
    }
    fill(&folder.join("units"), &units)?;
    testing::write_cases(&cases, folder)?;
    println!("{} cases", cases.len());
    Ok(())
}
