//! `lily pack`: a model in a form that a GPU uses where it is mapped.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use indicatif::DecimalBytes;
use lily_model::Model;
use lily_model::pack::{self, Manifest};
use lily_model::synth::{SynthFolder, Written};

use super::writing::{bar, check_room, of_folder, stream};
use crate::cli::PackFlags;
use crate::interrupt::{self, Interruptible};
use crate::setup;
use crate::terminal::remark;

pub(crate) fn run(flags: &PackFlags) -> Result<ExitCode> {
    interrupt::listen()?;
    let work = Interruptible::begin();
    let cancelled = || work.interrupted();
    let (folder, name) = setup::folder(&flags.model).with_context(|| format!("--model {}", flags.model))?;
    let done = match &flags.out {
        Some(out) => write(flags, &folder, &name, out, &cancelled)? == Written::All,
        None => check(&folder, &cancelled)?,
    };
    if done {
        return Ok(ExitCode::SUCCESS);
    }
    remark(if flags.check { "stopped" } else { "stopped; what had been written is removed" });
    Ok(ExitCode::from(interrupt::EXIT_CODE))
}

fn write(
    flags: &PackFlags,
    from: &Path,
    name: &str,
    out: &Path,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Written> {
    let model = Model::open(from)?;
    ensure!(
        Manifest::of_folder(from)?.is_none(),
        "--model {} is packed already: it can be used as it is, or copied",
        from.display()
    );
    let is_same = |out: &Path| out.canonicalize().ok() == from.canonicalize().ok();
    ensure!(!is_same(out), "--out {} is the model itself; wanted another folder", out.display());
    let files = pack::files(&model, name, pack::documents(from)?);
    // Room is measured after this has removed what a killed run left.
    let folder = SynthFolder::claim(out, flags.force).map_err(of_folder)?;
    check_room(folder.path(), files.bytes())?;
    stream(folder, &files, (files.streamed[0].1.bytes(), 1), Some(1), cancelled)
}

fn check(folder: &Path, cancelled: &dyn Fn() -> bool) -> Result<bool> {
    let manifest = Manifest::of_folder(folder)?.with_context(|| {
        format!(
            "--model {} is no packed model: it has no {}, which `lily pack --out` writes",
            folder.display(),
            pack::MANIFEST
        )
    })?;
    let bar = bar(manifest.bytes);
    let checked = pack::verify(folder, &mut |bytes| {
        bar.inc(bytes);
        !cancelled()
    });
    bar.finish_and_clear();
    if !checked? {
        return Ok(false);
    }
    remark(format_args!(
        "{}: {} are as lily {} packed them of {}",
        folder.display(),
        DecimalBytes(manifest.bytes),
        manifest.lily,
        manifest.source
    ));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lily_model::synth::Synth;
    use lily_model::testing::write_hollow;

    use super::*;
    use crate::cli::{Cli, Command};

    /// A terabyte, which takes no room: its weights are holes.
    #[test]
    fn a_disk_without_room_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (from, out) = (folder.path().join("from"), folder.path().join("out"));
        let mut preset = setup::preset("layer4").unwrap();
        preset.geometry.moe.experts = 4096;
        preset.geometry.moe.expert_width = 16_384;
        let synth = Synth::new(preset, 0).unwrap();
        write_hollow(&from, &synth.files(&[1], 1 << 36)).unwrap();
        let [from, to] = [&from, &out].map(|path| path.to_str().unwrap());
        let command = ["lily", "pack", "--model", from, "--out", to];
        let Command::Pack(flags) = Cli::try_parse_from(command).unwrap().command else { panic!("pack") };
        let refused = format!("{:#}", run(&flags).unwrap_err());
        assert!(
            refused.contains("--out") && refused.contains("not enough room: the model takes"),
            "{refused}"
        );
        assert!(!out.exists());
    }
}
