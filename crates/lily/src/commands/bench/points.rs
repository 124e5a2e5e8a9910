//! Figures on disk: a line of JSON for each, written as soon as it is there, so that a run that was stopped goes on.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::report::{Line, Shared};
use super::trials::Trial;
use crate::terminal::remark;

/// The file in the folder of `--out`.
const NAME: &str = "points.jsonl";

/// What makes a figure another one, beside its case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Circumstances {
    pub(super) commit: String,
    /// Model, device, precision and the like, as words.
    pub(super) asked: String,
}

/// A line of the file.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    line: &'a Line,
    asked: &'a str,
    #[serde(flatten)]
    shared: &'a Shared,
}

/// What is read of it.
#[derive(Deserialize)]
struct Read {
    #[serde(flatten)]
    circumstances: Circumstances,
    #[serde(flatten)]
    line: Line,
}

/// The figures of one program and one command.
pub(super) struct Points {
    path: PathBuf,
    file: File,
    circumstances: Circumstances,
    lines: Vec<Line>,
}

impl Points {
    /// Reads what a folder holds of these circumstances; the folder is made if it is not there.
    pub(super) fn open(folder: &Path, circumstances: Circumstances) -> Result<Points> {
        let path = folder.join(NAME);
        let context = || format!("--out {}", folder.display());
        fs::create_dir_all(folder).with_context(context)?;
        let file =
            OpenOptions::new().create(true).append(true).read(true).open(&path).with_context(context)?;
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let (mut lines, mut end) = (Vec::new(), 0);
        for (number, line) in text.split_inclusive('\n').enumerate() {
            end += line.len();
            match serde_json::from_str::<Read>(line) {
                Ok(read) if read.circumstances == circumstances => lines.push(read.line),
                Ok(_) => {}
                // What a run that was killed had not written to its end.
                Err(_) if !line.ends_with('\n') => {
                    remark(format_args!("{}: an unfinished last line is measured again", path.display()));
                    file.set_len((end - line.len()) as u64).with_context(context)?;
                }
                Err(_) if line.trim().is_empty() => {}
                Err(error) => bail!(
                    "{}, line {}, is no figure of `lily bench` ({error}); remove the line, or give another --out",
                    path.display(),
                    number + 1
                ),
            }
        }
        Ok(Points { path, file, circumstances, lines })
    }

    /// The figure of a trial, if it is there.
    pub(super) fn find(&self, trial: &Trial) -> Option<&Line> {
        self.lines.iter().find(|line| line.is_of(trial))
    }

    /// Keeps a figure.
    pub(super) fn add(&mut self, line: Line, shared: &Shared) -> Result<()> {
        let written = Written { line: &line, asked: &self.circumstances.asked, shared };
        let mut text = serde_json::to_string(&written)?;
        text.push('\n');
        let wrote = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        wrote.with_context(|| self.path.display().to_string())?;
        self.lines.push(line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{line, shared};
    use super::super::tests::plain;
    use super::*;

    fn circumstances(commit: &str) -> Circumstances {
        Circumstances { commit: commit.to_owned(), asked: "a model".to_owned() }
    }

    #[test]
    fn figures_come_back_under_their_circumstances_alone() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new");
        let open = |commit: &str| Points::open(&out, circumstances(commit)).unwrap();
        let (one, two) = (plain(512), plain(1024));
        let mut points = open("c1");
        assert!(points.find(&one).is_none());
        points.add(line(&one), &Shared { commit: "c1".into(), ..shared() }).unwrap();
        assert!(open("c1").find(&one).is_some() && open("c1").find(&two).is_none());
        assert!(open("c2").find(&one).is_none());
        let without = Trial { without: Some("gqa-pack".into()), ..one.clone() };
        assert!(open("c1").find(&without).is_none());
    }

    #[test]
    fn an_unfinished_line_is_measured_again_and_a_wrong_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let open = || Points::open(folder.path(), circumstances("c1"));
        let (one, two) = (plain(512), plain(1024));
        open().unwrap().add(line(&one), &Shared { commit: "c1".into(), ..shared() }).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{}", &whole[..whole.len() / 2])).unwrap();
        let mut points = open().unwrap();
        assert!(points.find(&one).is_some() && points.find(&two).is_none());
        points.add(line(&two), &Shared { commit: "c1".into(), ..shared() }).unwrap();
        assert!(open().unwrap().find(&two).is_some());
        fs::write(&path, format!("{whole}hello\n{whole}")).unwrap();
        let error = open().err().unwrap().to_string();
        assert!(error.contains("line 2, is no figure"), "{error}");
    }
}
