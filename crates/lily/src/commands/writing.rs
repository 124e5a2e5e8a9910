//! Writing the files of a model into a folder, for `lily synth` and `lily pack`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use lily_model::synth::{FolderError, Progress, SynthFiles, SynthFolder, Written};

use crate::terminal::remark;

/// Why a folder cannot be written into, by the flag that names it.
pub(super) fn of_folder(error: FolderError) -> anyhow::Error {
    match error {
        FolderError::NotEmpty { .. } => {
            anyhow::anyhow!("--out {error} (--force replaces the model in it and leaves other files alone)")
        }
        error => anyhow::anyhow!("--out {error}"),
    }
}

/// There must be room before the first byte is written.
pub(super) fn check_room(out: &Path, need: u64) -> Result<()> {
    let room = fs4::available_space(out).and_then(|free| Ok((free, fs4::total_space(out)?)));
    let (free, total) = room.with_context(|| format!("the room in {}", out.display()))?;
    ensure!(
        has_room(need, free, total),
        "--out {}: not enough room: the model takes {}, and {} are free there",
        out.display(),
        DecimalBytes(need),
        DecimalBytes(free)
    );
    Ok(())
}

/// Disks that do not say how large they are do not say what is free either.
fn has_room(need: u64, free: u64, total: u64) -> bool {
    need <= free || total == 0
}

/// A bar of bytes, shown on a terminal only.
pub(super) fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let template = "{bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Writes the files, `weights` bytes of them weights in so many files, and says how that went.
pub(super) fn stream(
    folder: SynthFolder,
    files: &SynthFiles<'_>,
    (weights, count): (u64, usize),
    threads: Option<u16>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Written> {
    let out = folder.path().to_owned();
    let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let bar = bar(files.bytes());
    let began = Instant::now();
    let progress = Progress { written: &|bytes| bar.inc(bytes), cancelled };
    let written = files.write(folder, threads.map_or_else(all, usize::from), progress);
    bar.finish_and_clear();
    let written = written.with_context(|| format!("--out {}", out.display()))?;
    if written == Written::All {
        let seconds = began.elapsed().as_secs_f64();
        remark(format_args!(
            "{}: {} of weights in {count} {}, {seconds:.1} s, {:.0} MB/s",
            out.display(),
            DecimalBytes(weights),
            if count == 1 { "file" } else { "files" },
            files.bytes() as f64 / 1e6 / seconds
        ));
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_does_not_say_its_size_may_have_room() {
        assert!(has_room(1, 0, 0) && has_room(1, 1, 2) && !has_room(2, 1, 2) && !has_room(1, 0, 2));
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = check_room(folder.path(), 1 << 60).unwrap_err().to_string();
        assert!(
            refused.contains("--out") && refused.contains("not enough room: the model takes 1.15 EB"),
            "{refused}"
        );
    }
}
