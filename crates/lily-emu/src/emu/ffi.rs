//! The boundary to the compiled texts and the emulator.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lily_kernels::{Activation, Dispatch};

include!(concat!(env!("OUT_DIR"), "/texts.rs"));

/// `emu::Kernel` of shims/emu/kernels.h.
#[repr(C)]
struct Entry {
    name: *const c_char,
    act: *const c_char,
    entry: extern "C" fn(*mut c_void),
    set: extern "C" fn(*const u32),
    buffers: u32,
    constants: u32,
}

// bridge.cpp
unsafe extern "C" {
    fn lily_emu_seed(seed: u32);
    fn lily_emu_dispatch(
        entry: extern "C" fn(*mut c_void),
        grid: *const u32,
        threads: *const u32,
        buffers: *const *mut c_void,
        parameter_bytes: *const usize,
        parameters: u32,
        first: usize,
        count: usize,
    );
}

/// Function constants and the seed are globals of the compiled texts: one launch runs at a time in a process, though on
/// several threads.
static LAUNCH: Mutex<()> = Mutex::new(());

/// The compiled texts by name and type of activations.
pub(crate) struct Texts(HashMap<(&'static str, Activation), &'static Entry>);

// SAFETY: entries are constants of the library; what they point to is constant too.
unsafe impl Send for Texts {}

/// A compiled text.
#[derive(Clone, Copy)]
pub(crate) struct Compiled(&'static Entry);

impl Texts {
    pub(crate) fn new() -> Self {
        // SAFETY: each points to a constant of the library, of the type that kernels.h gives it.
        Texts(entries().into_iter().map(|(name, act, e)| ((name, act), unsafe { &*e })).collect())
    }

    pub(crate) fn get(&self, name: &'static str, activation: Activation) -> Option<Compiled> {
        self.0.get(&(name, activation)).map(|entry| Compiled(entry))
    }
}

/// A launch with all that it reads of its own; threadgroups of it may run on several threads.
pub(crate) struct Launch {
    entry: extern "C" fn(*mut c_void),
    grid: [u32; 3],
    threads: [u32; 3],
    buffers: Vec<*mut c_void>,
    threadgroup_bytes: Vec<usize>,
    /// What the last of `buffers` by value points to.
    _params: Vec<u32>,
    groups: usize,
}

// SAFETY: the pointers stay valid, and nobody else touches what is behind them, while the launch runs (promised to
// `Launch::new`). Threadgroups write disjoint bytes and read none that another one writes: a rule of the contract.
unsafe impl Send for Launch {}
// SAFETY: as for Send.
unsafe impl Sync for Launch {}

impl Launch {
    /// A launch of `compiled` with `buffers` by number; the parameters by value are added.
    ///
    /// # Safety
    /// The dispatch is of this text, and each buffer is what its operand takes: long enough, aligned as the text reads it, and
    /// until the launch is over valid and not touched by anything else.
    pub(crate) unsafe fn new(compiled: Compiled, dispatch: &Dispatch, mut buffers: Vec<*mut u8>) -> Self {
        let mut params = dispatch.params.clone();
        if let Some(n) = dispatch.text.value_buffer() {
            buffers[n] = params.as_mut_ptr().cast();
        }
        let entry = compiled.0;
        assert_eq!(entry.buffers as usize, buffers.len(), "buffers of {}", dispatch.text.name);
        assert!(buffers.iter().all(|b| !b.is_null()), "{}: a buffer is not bound", dispatch.text.name);
        let words = |values: [usize; 3]| values.map(|v| u32::try_from(v).unwrap_or(u32::MAX));
        Launch {
            entry: entry.entry,
            grid: words(dispatch.grid),
            threads: words(dispatch.threads),
            buffers: buffers.into_iter().map(|b| b.cast()).collect(),
            threadgroup_bytes: dispatch.threadgroup_bytes.clone(),
            _params: params,
            groups: dispatch.grid.iter().product(),
        }
    }

    /// Threadgroups.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    /// Threads of all threadgroups.
    pub(crate) fn all_threads(&self) -> usize {
        self.groups * self.threads.iter().product::<u32>() as usize
    }

    /// Runs some of the threadgroups, while an [`Exclusive`] for this launch lives.
    pub(crate) fn run(&self, groups: Range<usize>) {
        assert!(groups.end <= self.groups);
        // SAFETY: by the promise to `Launch::new`; all arrays have the lengths that are passed or that the types say.
        unsafe {
            lily_emu_dispatch(
                self.entry,
                self.grid.as_ptr(),
                self.threads.as_ptr(),
                self.buffers.as_ptr(),
                self.threadgroup_bytes.as_ptr(),
                self.threadgroup_bytes.len() as u32,
                groups.start,
                groups.len(),
            );
        }
    }
}

/// The right to run one launch of a text with its constants, while no other launch of the process runs.
pub(crate) struct Exclusive(#[allow(dead_code)] MutexGuard<'static, ()>); // held, not read

impl Exclusive {
    /// Waits for other launches, then sets the constants.
    pub(crate) fn new(compiled: Compiled, constants: &[u32], seed: u32) -> Self {
        let guard = LAUNCH.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(compiled.0.constants as usize, constants.len());
        (compiled.0.set)(constants.as_ptr());
        // SAFETY: sets a global of the emulator that is read by launches, of which none runs now.
        unsafe { lily_emu_seed(seed) };
        Exclusive(guard)
    }
}

/// Which bytes a launch touches.
#[cfg(feature = "touch")]
pub(crate) mod touch {
    use super::Exclusive;

    unsafe extern "C" {
        fn lily_emu_touch_begin();
        fn lily_emu_touch_watch(number: u32, start: *const u8, bytes: usize);
        fn lily_emu_touch_end();
        fn lily_emu_touched(number: u32, read: *mut u64, written: *mut u64);
    }

    /// Runs something and gives the bytes read and written of each watched memory, each byte once.
    pub(crate) fn record(
        _one_launch: &Exclusive,
        watched: &[(*const u8, usize)],
        run: impl FnOnce(),
    ) -> Vec<(u64, u64)> {
        // SAFETY: the recorder's globals are touched by one thread at a time (the launch is exclusive and, with this feature,
        // on one thread); it compares addresses and reads none of the memory.
        unsafe {
            lily_emu_touch_begin();
            for (n, (start, bytes)) in watched.iter().enumerate() {
                lily_emu_touch_watch(n as u32, *start, *bytes);
            }
        }
        run();
        // SAFETY: as above; the numbers are those that are watched.
        unsafe {
            lily_emu_touch_end();
            let touched = (0..watched.len()).map(|n| {
                let (mut read, mut written) = (0, 0);
                lily_emu_touched(n as u32, &raw mut read, &raw mut written);
                (read, written)
            });
            touched.collect()
        }
    }
}
