//! `lily ps`: the servers that run.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use chrono::{DateTime, Local};

use crate::cli::PsFlags;
use crate::running::{self, Entry};

pub(crate) fn run(flags: &PsFlags) -> Result<ExitCode> {
    let folder = running::folder(|name| std::env::var_os(name));
    let folder = folder
        .context("none of XDG_RUNTIME_DIR, XDG_CACHE_HOME and HOME is set: servers leave no entry then")?;
    let entries = running::list(&folder).with_context(|| format!("the folder {}", folder.display()))?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        serde_json::to_writer(&mut out, &entries)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&entries))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Columns as wide as what is in them.
fn table(entries: &[Entry]) -> String {
    let mut rows = vec![["PID", "ADDRESS", "MODEL", "DEVICE", "CONTEXT", "SINCE"].map(str::to_owned)];
    rows.extend(entries.iter().map(|entry| {
        let Entry { pid, url, model, device, context, started } = entry;
        [pid.to_string(), url.clone(), model.clone(), device.clone(), context.to_string(), moment(*started)]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &[String; 6]| {
        let cells: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

/// Local time.
fn moment(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.map_or_else(|| "?".into(), |time| time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit() {
        let (url, model, device) = ("http://127.0.0.1:8080".into(), "m".into(), "CPU, 2 threads".into());
        let entry = Entry { pid: 7, url, model, device, context: 262_144, started: 0 };
        let table = table(&[entry]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2);
        for (column, cell) in
            [("PID", "7"), ("ADDRESS", "http:"), ("DEVICE", "CPU, 2"), ("CONTEXT", "262144")]
        {
            assert_eq!(lines[0].find(column), lines[1].find(cell), "{table}");
        }
    }
}
