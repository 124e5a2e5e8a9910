//! Ctrl-C for commands that do what may take long: the first stops an answer (or the writing of a file), a second one
//! during the same answer ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

static WORKING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit status after Ctrl-C, as shells know it: 128 + SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// From here on Ctrl-C is ours. Outside of work that it stops it ends the program.
pub(crate) fn listen() -> anyhow::Result<()> {
    ctrlc::set_handler(|| {
        if !WORKING.load(Ordering::SeqCst) || ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    })?;
    Ok(())
}

/// Work in progress, an answer for example; until it is dropped, Ctrl-C asks for its end.
pub(crate) struct Interruptible(());

impl Interruptible {
    /// Begins the work.
    pub(crate) fn begin() -> Self {
        ASKED.store(false, Ordering::SeqCst);
        WORKING.store(true, Ordering::SeqCst);
        Interruptible(())
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn interrupted(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        WORKING.store(false, Ordering::SeqCst);
    }
}
