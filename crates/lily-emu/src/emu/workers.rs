//! Host threads that share the threadgroups of a launch. Which thread runs a threadgroup, and when, changes no result: a
//! launch's threadgroups write disjoint bytes and read none that another one writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use lily_model::DeviceError;

use super::ffi::Launch;

/// Threads of a launch below which waking others costs more than they bring.
const WORTH_SHARING: usize = 1024;

/// Portions that each thread should find, so that uneven ones even out.
const PORTIONS: usize = 4;

struct Job {
    launch: Launch,
    portion: usize,
    next: AtomicUsize,
}

impl Job {
    fn work(&self) {
        loop {
            let start = self.next.fetch_add(self.portion, Ordering::Relaxed);
            if start >= self.launch.groups() {
                return;
            }
            self.launch.run(start..(start + self.portion).min(self.launch.groups()));
        }
    }
}

struct Worker {
    jobs: Option<Sender<Arc<Job>>>,
    thread: Option<JoinHandle<()>>,
}

/// The threads beside the caller's.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    done: Receiver<()>,
}

impl Workers {
    /// `threads` in all.
    pub(crate) fn new(threads: usize) -> Result<Self, DeviceError> {
        let (send_done, done) = channel();
        let start = |n| {
            let (jobs, inbox) = channel::<Arc<Job>>();
            let send_done = send_done.clone();
            let body = move || {
                for job in inbox {
                    job.work();
                    drop(job);
                    if send_done.send(()).is_err() {
                        return;
                    }
                }
            };
            let thread = Builder::new().name(format!("emu-{n}")).spawn(body);
            let thread = thread.map_err(|e| DeviceError::Failed(format!("a thread did not start: {e}")))?;
            Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
        };
        let workers = (1..threads).map(start).collect::<Result<_, DeviceError>>()?;
        Ok(Workers { workers, done })
    }

    /// Threads in all.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs all threadgroups of a launch.
    pub(crate) fn run(&self, launch: Launch) -> Result<(), DeviceError> {
        let groups = launch.groups();
        if self.workers.is_empty() || groups < 2 || launch.all_threads() < WORTH_SHARING {
            launch.run(0..groups);
            return Ok(());
        }
        let portion = groups.div_ceil(self.threads() * PORTIONS);
        let job = Arc::new(Job { launch, portion, next: AtomicUsize::new(0) });
        let helpers = self.workers.iter().take(groups.div_ceil(portion) - 1);
        let sent =
            helpers.filter(|w| w.jobs.as_ref().is_some_and(|jobs| jobs.send(job.clone()).is_ok())).count();
        job.work();
        for _ in 0..sent {
            if self.done.recv().is_err() {
                return Err(DeviceError::Failed("a thread of the emulator has ended".into()));
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            drop(worker.jobs.take());
        }
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
