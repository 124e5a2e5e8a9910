//! Where the log of a server goes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

use crate::terminal::STYLED;

/// Begins to log: to a file, which is returned, or to standard error.
pub(crate) fn begin(file: Option<&Path>) -> Result<Option<LogFile>> {
    match file {
        Some(path) => {
            let file = LogFile::open(path).with_context(|| format!("--log-file {}", path.display()))?;
            format().with_writer(file.clone()).with_ansi(false).init();
            Ok(Some(file))
        }
        None => {
            format().with_writer(io::stderr).with_ansi(*STYLED).init();
            Ok(None)
        }
    }
}

/// Lines that cannot be written are lost: a message about it on a standard error that is full or closed would panic in whatever task
/// wanted to log, be it a request's or that of the signals.
fn format() -> SubscriberBuilder {
    tracing_subscriber::fmt().with_target(false).log_internal_errors(false)
}

/// A file that is appended to, and that may be moved away meanwhile: [`LogFile::reopen`] begins a new one at the same path. Clones
/// are the same file.
#[derive(Clone, Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(LogFile { path: path.to_owned(), file: Arc::new(Mutex::new(append(path)?)) })
    }

    /// Opens the path again. If that fails, the log goes on where it was.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let new = append(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Reopens at each hangup signal, as tools that rotate logs send it.
    #[cfg(unix)]
    pub(crate) async fn reopen_at_hangup(self) {
        lily_server::at_hangups(|| {
            if let Err(error) = self.reopen() {
                tracing::error!("the log goes on where it was: --log-file {}: {error}", self.path.display());
            }
        })
        .await;
    }
}

/// For this user's eyes: a log has no prompts, but names of models and times of requests.
fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Write for &LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}
