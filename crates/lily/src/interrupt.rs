//! Ctrl-C for commands that answer in the terminal: the first stops an answer, a second one during the same answer ends
//! the program.

use std::sync::atomic::{AtomicBool, Ordering};

static ANSWERING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit status after Ctrl-C, as shells know it: 128 + SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// From here on Ctrl-C is ours. Outside an answer it ends the program.
pub(crate) fn listen() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if !ANSWERING.load(Ordering::SeqCst) || ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    })?;
    Ok(())
}

/// An answer in progress; until it is dropped, Ctrl-C asks for its end.
pub(crate) struct Answering(());

impl Answering {
    /// Begins an answer.
    pub(crate) fn begin() -> Self {
        ASKED.store(false, Ordering::SeqCst);
        ANSWERING.store(true, Ordering::SeqCst);
        Answering(())
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn interrupted(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::SeqCst);
    }
}
