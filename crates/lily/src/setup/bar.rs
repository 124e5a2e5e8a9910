//! Bars on a terminal.

use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressStyle};
use lily_model::device::Progress;

/// A bar for what takes a while; gone when it is done. `indicatif` draws on terminals only.
#[derive(Default)]
pub(super) struct Bar(Mutex<Option<ProgressBar>>);

impl Bar {
    pub(super) fn show(&self, progress: Progress) {
        let (done, of, template) = match progress {
            Progress::Compiling { done, of } => {
                (done, of, "{bar:30} {pos}/{len} kernels compiled, {eta} left")
            }
            Progress::Loading { bytes, of } => {
                (bytes, of, "{bar:30} {bytes}/{total_bytes} of weights, {bytes_per_sec}, {eta} left")
            }
        };
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = shown.get_or_insert_with(|| {
            let bar = ProgressBar::new(of as u64);
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        bar.set_position(done as u64);
        if done >= of {
            bar.finish_and_clear();
            *shown = None;
        }
    }
}
