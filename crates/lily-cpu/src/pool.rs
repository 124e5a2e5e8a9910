//! A pool of pinned threads that run numbered tasks.
//!
//! A decode step is several hundred short runs, so workers look for the next run for a moment before they sleep, and the
//! thread that asks works along.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::loops::integer::Panel;

/// How many times a worker looks for work before it sleeps: about 50 microseconds, longer than the gap between the
/// launches of a step and short enough not to matter to other programs.
const SPINS: usize = 10_000;

/// What a worker keeps from task to task.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// What products make ready.
    pub(crate) panels: Panels,
    /// Results on their way to where they belong.
    pub(crate) out: Vec<f32>,
    /// A second set of results.
    pub(crate) out2: Vec<f32>,
    /// Weights of a plain tensor, widened.
    pub(crate) plain: Vec<f32>,
}

/// What products make ready before they multiply.
#[derive(Debug, Default)]
pub(crate) struct Panels {
    /// Activations.
    pub(crate) floats: Vec<f32>,
    /// Matrix rows, for integer products.
    pub(crate) integers: Panel,
}

/// A buffer of at least `len` values; what it holds is not defined.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// A thread's share of a run's tasks: those from `next` to `end` are left. A share is a run of neighbours, the same of every
/// run of as many tasks: state that a thread leaves in its cache meets the same thread in the next step, and weights are
/// read in long runs. On a line of its own, because its thread takes every task from it.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl Share {
    fn take(&self) -> Option<usize> {
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        (i < self.end.load(Ordering::Relaxed)).then_some(i)
    }
}

/// The gate's flag; the lower bits count workers.
const OPEN: usize = 1 << (usize::BITS - 1);

type Task<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

struct Shared {
    /// Counts runs; a worker that sees a new number joins the run.
    epoch: AtomicUsize,
    /// The run's task; valid while the gate is open or workers are inside.
    task: UnsafeCell<Option<&'static Task<'static>>>,
    /// The tasks that each thread takes first.
    shares: Vec<Share>,
    /// [`OPEN`] while a run may be joined, plus the number of workers inside. A run waits only for workers that joined:
    /// one that the system has put aside does not hold up the others.
    gate: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: Mutex<usize>,
    wake: Condvar,
}

// SAFETY: `task` is written only by the thread inside `Pool::run` (which needs `&mut Pool`) while the gate is closed and
// empty, and read only by workers inside the gate, which opens with Release after the write.
unsafe impl Sync for Shared {}

/// Pinned worker threads; the caller of [`Pool::run`] is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    scratch: Scratch,
}

impl Pool {
    /// A pool of `threads` (at least 1), the caller's included. With `pin`, worker i runs on the i-th processor that
    /// this process may use; the caller pins itself with [`Pool::pin_caller`].
    pub(crate) fn new(threads: usize, pin: bool) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            task: UnsafeCell::new(None),
            shares: (0..threads).map(|_| Share::default()).collect(),
            gate: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: Mutex::new(0),
            wake: Condvar::new(),
        });
        let cores = if pin { core_affinity::get_core_ids().unwrap_or_default() } else { Vec::new() };
        let start = |i: usize| {
            let (shared, core) = (shared.clone(), cores.get(i).copied());
            std::thread::Builder::new().name(format!("lily-cpu-{i}")).spawn(move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                work(&shared, i);
            })
        };
        // A thread that cannot be started only makes the pool smaller.
        let workers = (1..threads).filter_map(|i| start(i).ok()).collect();
        Pool { shared, workers, scratch: Scratch::default() }
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, in any order and on any thread; returns when all are done. False if one
    /// panicked; the others still ran or were skipped.
    pub(crate) fn run(&mut self, tasks: usize, task: &Task<'_>) -> bool {
        let shared = &*self.shared;
        if tasks <= 1 || self.workers.is_empty() {
            let scratch = &mut self.scratch;
            return catch_unwind(AssertUnwindSafe(|| (0..tasks).for_each(|i| task(i, scratch)))).is_ok();
        }
        // SAFETY: only the lifetime changes. Workers touch the task inside the gate only, and this function returns after
        // it has closed the gate and seen the last worker leave.
        let task: &'static Task<'static> =
            unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: the gate is closed and empty, so no worker reads `task` now.
        unsafe { *shared.task.get() = Some(task) };
        let count = shared.shares.len();
        for (i, share) in shared.shares.iter().enumerate() {
            share.next.store(i * tasks / count, Ordering::Relaxed);
            share.end.store((i + 1) * tasks / count, Ordering::Relaxed);
        }
        shared.panicked.store(false, Ordering::Relaxed);
        shared.gate.store(OPEN, Ordering::Release);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if *shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            shared.wake.notify_all();
        }
        take_tasks(shared, 0, task, &mut self.scratch);
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.gate.load(Ordering::Acquire) > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        !shared.panicked.load(Ordering::Relaxed)
    }

    /// Pins the calling thread to the first processor that this process may use.
    pub(crate) fn pin_caller() {
        if let Some(core) = core_affinity::get_core_ids().and_then(|ids| ids.first().copied()) {
            core_affinity::set_for_current(core);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.sleepers.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// Runs the tasks of the thread's own share, then what is left of the others'.
fn take_tasks(shared: &Shared, thread: usize, task: &Task<'_>, scratch: &mut Scratch) {
    let (before, own_and_behind) = shared.shares.split_at(thread);
    let all = catch_unwind(AssertUnwindSafe(|| {
        for share in own_and_behind.iter().chain(before) {
            while let Some(i) = share.take() {
                task(i, scratch);
            }
        }
    }));
    if all.is_err() {
        shared.panicked.store(true, Ordering::Relaxed);
        for share in &shared.shares {
            share.end.store(0, Ordering::Relaxed);
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let (mut seen, mut scratch) = (0, Scratch::default());
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen && !shared.stop.load(Ordering::Relaxed) {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let mut sleepers = shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
            *sleepers += 1;
            // The epoch is read again under the lock: a run that starts from here on finds this sleeper counted.
            while shared.epoch.load(Ordering::SeqCst) == seen && !shared.stop.load(Ordering::SeqCst) {
                sleepers = shared.wake.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
            }
            *sleepers -= 1;
        }
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        seen = shared.epoch.load(Ordering::Acquire);
        let join = |gate: usize| (gate & OPEN != 0).then_some(gate + 1);
        if shared.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).is_err() {
            continue;
        }
        // SAFETY: inside the gate, which opened after the task was written.
        if let Some(task) = unsafe { *shared.task.get() } {
            take_tasks(shared, thread, task, &mut scratch);
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_and_a_panic_is_reported() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads, false);
            for round in 0..200 {
                let counts: Vec<AtomicUsize> = (0..round).map(|_| AtomicUsize::new(0)).collect();
                assert!(pool.run(round, &|i, _| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                }));
                assert!(
                    counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {round} tasks"
                );
            }
            assert!(!pool.run(9, &|i, _| assert_ne!(i, 4)));
            assert!(pool.run(9, &|_, _| ()));
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let mut pool = Pool::new(3, false);
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let sum = AtomicUsize::new(0);
            assert!(pool.run(100, &|i, _| {
                sum.fetch_add(i, Ordering::Relaxed);
            }));
            assert_eq!(sum.into_inner(), 4950);
        }
    }
}
