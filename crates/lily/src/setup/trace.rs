//! When stages ran, in a file of Chrome's trace event format.
//!
//! Each event is written with the end of the file behind it, in one piece, over the end that stood there before: whenever the program
//! ends, and however, the file is whole.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use lily_model::device::{Span, Trace};
use serde_json::json;

use crate::terminal::remark;

/// What ends the file.
const END: &str = "\n]}\n";

/// What a label begins with where it is not a plan's.
const OTHER: &str = "other";

/// Begins a file, in place of one that is there. `device` is what its times are of.
pub(crate) fn begin(path: &Path, device: &str) -> Result<Trace> {
    let created = File::create(path).and_then(|file| Writer::begin(file, device));
    let writer = created.with_context(|| format!("--trace {}", path.display()))?;
    let kept = Mutex::new(Kept { writer: Some(writer), path: path.to_owned() });
    Ok(Arc::new(move |label, span| kept.lock().unwrap_or_else(PoisonError::into_inner).add(label, span)))
}

/// A trace, until it cannot be written.
struct Kept {
    writer: Option<Writer<File>>,
    path: PathBuf,
}

impl Kept {
    /// An answer is worth more than its trace: what goes wrong is said once.
    fn add(&mut self, label: &str, span: Span) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = writer.add(label, span) {
            remark(format_args!("--trace {}: {error}; it ends here", self.path.display()));
            if let Some(writer) = self.writer.take() {
                // What was there before is whole again, as far as the disk takes it.
                let _ = writer.close_again();
            }
        }
    }
}

struct Writer<F> {
    file: F,
    /// Where the end of the file stands.
    end: u64,
    /// When the first stage began: times count from there.
    began: Option<f64>,
}

impl<F: Write + Seek> Writer<F> {
    fn begin(mut file: F, device: &str) -> io::Result<Self> {
        let process =
            json!({ "ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": { "name": "lily" } });
        let thread =
            json!({ "ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": { "name": device } });
        let about = json!({ "version": env!("CARGO_PKG_VERSION"), "device": device });
        let head = format!(
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[\n{process},\n{thread}"
        );
        file.write_all(format!("{head}{END}").as_bytes())?;
        Ok(Writer { file, end: head.len() as u64, began: None })
    }

    fn add(&mut self, label: &str, span: Span) -> io::Result<()> {
        let began = *self.began.get_or_insert(span.start);
        // In microseconds, to the nanosecond.
        let micros = |seconds: f64| (seconds * 1e9).round() / 1e3;
        let what = label.split_once(": ").map_or(OTHER, |(phase, _)| phase);
        let event = json!({
            "ph": "X", "pid": 1, "tid": 1, "cat": what, "name": label,
            "ts": micros(span.start - began), "dur": micros((span.end - span.start).max(0.0)),
        });
        let event = format!(",\n{event}");
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(format!("{event}{END}").as_bytes())?;
        self.end += event.len() as u64;
        Ok(())
    }
}

impl Writer<File> {
    /// Ends the file where it stood before the last event.
    fn close_again(mut self) -> io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(END.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::*;

    fn events(path: &Path) -> Vec<Value> {
        let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert_eq!(file["otherData"]["device"], "CPU \"of paper\"");
        let events = file["traceEvents"].as_array().unwrap().clone();
        events.into_iter().filter(|event| event["ph"] == "X").collect()
    }

    #[test]
    fn the_file_is_whole_after_every_event() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        fs::write(&path, vec![b'x'; 100_000]).unwrap();
        let trace = begin(&path, "CPU \"of paper\"").unwrap();
        assert!(events(&path).is_empty());
        let spans = [(100.5, 100.5000015), (100.6, 100.6), (101.0, 103.25)];
        for (done, (start, end)) in spans.into_iter().enumerate() {
            trace(["prefill: a of layer 0 (b)", "growing", "decode: \"c\""][done], Span { start, end });
            assert_eq!(events(&path).len(), done + 1);
        }
        let events = events(&path);
        let of = |key: &str| events.iter().map(|event| event[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("cat"), ["prefill", "other", "decode"]);
        assert_eq!(of("name"), ["prefill: a of layer 0 (b)", "growing", "decode: \"c\""]);
        assert_eq!(of("ts"), [0.0, 100_000.0, 500_000.0]);
        assert_eq!(of("dur"), [1.5, 0.0, 2_250_000.0]);
    }

    #[test]
    fn a_file_that_cannot_be_is_refused_by_the_flag() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none").join("trace.json");
        let refused = format!("{:#}", begin(&path, "x").err().unwrap());
        assert!(refused.contains("--trace") && refused.contains("trace.json"), "{refused}");
    }

    /// A disk that is full takes a part of an event.
    #[test]
    fn a_trace_that_breaks_off_is_whole_up_to_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut writer = Writer::begin(File::create(&path).unwrap(), "CPU \"of paper\"").unwrap();
        writer.add("decode: a", Span { start: 0.0, end: 1.0 }).unwrap();
        let end = writer.end;
        writer.file.seek(SeekFrom::Start(end)).unwrap();
        writer.file.write_all(b",\n{\"ph\":\"X\",\"na").unwrap();
        assert!(serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).is_err());
        writer.close_again().unwrap();
        assert_eq!(events(&path).len(), 1);
    }
}
