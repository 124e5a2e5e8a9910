//! Weights into memory, with a bar where that takes time.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use lily_model::Model;

/// Weights that the system holds already are mapped in less.
const BAR_AFTER: Duration = Duration::from_millis(500);

/// Reads a model's files, so that no answer waits for a disk in the middle of it.
pub(super) fn warm(model: &Model) {
    let total = model.checkpoint.mapped_bytes();
    let (started, bar) = (Instant::now(), OnceLock::new());
    model.checkpoint.warm(&|read| {
        if read < total && started.elapsed() >= BAR_AFTER {
            bar.get_or_init(|| {
                let bar = ProgressBar::new(total);
                let style = "reading {msg} of weights {bar:30} {decimal_bytes_per_sec}, {eta} left";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style);
                }
                bar.set_message(DecimalBytes(total).to_string());
                bar
            });
        }
        if let Some(bar) = bar.get() {
            bar.set_position(read);
        }
    });
    if let Some(bar) = bar.get() {
        bar.finish_and_clear();
    }
}
