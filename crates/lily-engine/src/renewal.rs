//! The engine's thread from its start to its end: work with a model, and where it may sleep, time without one.
//!
//! A model that nobody asks is dropped with all its memory, and made again by the first request after that. What counts is
//! requests alone: looking at limits and load neither wakes the thread nor keeps it awake.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use lily_model::Forward;
use lily_protocol::Event;

use crate::config::EngineConfig;
use crate::engine::Shared;
use crate::task::Task;
use crate::worker::{Worker, message};

/// When a model is let go, and how it comes back.
pub struct Sleep {
    /// Time without a request after which the model is dropped.
    pub after: Duration,
    /// Makes it again, the same one; or says why that cannot be, which is what the waiting requests are told.
    pub wake: Box<dyn FnMut() -> Result<Box<dyn Forward>, String> + Send>,
}

impl std::fmt::Debug for Sleep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sleep").field("after", &self.after).finish_non_exhaustive()
    }
}

/// How work with a model ended.
pub(crate) enum Ended {
    /// For good.
    Closed,
    /// Nobody asked for anything for as long as [`Sleep::after`] says.
    Idle(Receiver<Task>),
}

/// The thread.
pub(crate) fn run(
    config: &EngineConfig,
    mut forward: Box<dyn Forward>,
    mut receiver: Receiver<Task>,
    shared: &Arc<Shared>,
    mut sleep: Option<Sleep>,
) {
    let mut first = None;
    loop {
        let after = sleep.as_ref().map(|sleep| sleep.after);
        let worker = Worker::new(config, forward, receiver, shared.clone(), after);
        let Ended::Idle(tasks) = worker.run(first.take()) else { return };
        let Some(sleep) = &mut sleep else { return };
        tracing::info!(
            "nobody asked for {} s: the model is let go until somebody does",
            sleep.after.as_secs_f64()
        );
        shared.set_asleep(true);
        let woken = wake(config, &tasks, shared, sleep);
        shared.set_asleep(false);
        let Some((task, made)) = woken else { return };
        (first, forward, receiver) = (Some(task), made, tasks);
    }
}

/// Waits for a request and makes the model for it. `None` at the end of all work.
fn wake(
    config: &EngineConfig,
    tasks: &Receiver<Task>,
    shared: &Shared,
    sleep: &mut Sleep,
) -> Option<(Task, Box<dyn Forward>)> {
    loop {
        let task = tasks.recv().ok()?;
        if task.events.cancelled() || shared.aborted() {
            shared.ended(None);
            continue;
        }
        let started = Instant::now();
        match make(config, sleep) {
            Ok(forward) => {
                tracing::info!("the model was loaded again in {:.1} s", started.elapsed().as_secs_f64());
                return Some((task, forward));
            }
            Err(problem) => {
                let sentence = format!("the model that was let go could not be loaded again: {problem}");
                tracing::error!("{sentence}");
                task.events.send(Event::Failed(sentence));
                shared.ended(None);
            }
        }
    }
}

fn make(config: &EngineConfig, sleep: &mut Sleep) -> Result<Box<dyn Forward>, String> {
    let made = catch_unwind(AssertUnwindSafe(|| (sleep.wake)()));
    let forward = made.map_err(|panic| message(&*panic))??;
    config.check(&*forward).map_err(|error| error.to_string())?;
    Ok(forward)
}
