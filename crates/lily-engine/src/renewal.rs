//! The engine's thread from its start to its end: work with a model, time without one, and the model made again.
//!
//! A model that nobody asks is dropped with all its memory, and so is one whose device is lost; the first request after that makes it
//! again. What counts is requests alone: looking at limits and load neither wakes the thread nor keeps it awake.

use std::collections::VecDeque;
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

/// How a model that was dropped comes back.
pub struct Renewal {
    /// Time without a request after which it is dropped; `None`: never for that.
    pub idle: Option<Duration>,
    /// Makes it again, the same one, on a device that may be another; or says why that cannot be, which is what the request is told that
    /// it would be made for.
    pub make: Box<dyn FnMut() -> Result<Box<dyn Forward>, String> + Send>,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// What work with a model leaves behind.
pub(crate) struct Rest {
    /// Requests that nobody has begun, or that were put back.
    pub(crate) waiting: VecDeque<Task>,
    /// Where more of them come.
    pub(crate) receiver: Receiver<Task>,
}

/// How work with a model ended.
pub(crate) enum Ended {
    /// For good.
    Closed,
    /// Nobody asked for anything for as long as [`Renewal::idle`] says.
    Idle(Rest),
    /// The device is gone, for this reason, and those at work were told.
    Lost(String, Rest),
}

/// The thread.
pub(crate) fn run(
    config: &EngineConfig,
    mut forward: Box<dyn Forward>,
    receiver: Receiver<Task>,
    shared: &Arc<Shared>,
    mut renewal: Option<Renewal>,
) {
    let mut rest = Rest { waiting: VecDeque::new(), receiver };
    loop {
        let idle = renewal.as_ref().and_then(|renewal| renewal.idle).unwrap_or_default();
        let worker = Worker::new(config, forward, rest.receiver, shared.clone(), renewal.as_ref());
        rest = match worker.run(rest.waiting) {
            Ended::Closed => return,
            Ended::Idle(rest) => {
                let seconds = idle.as_secs_f64();
                tracing::info!("nobody asked for {seconds} s: the model is let go until somebody does");
                rest
            }
            Ended::Lost(why, rest) => {
                tracing::error!("the device is lost: {why}; the next request loads the model again");
                rest
            }
        };
        let Some(renewal) = &mut renewal else { return };
        shared.set_asleep(true);
        let made = next(config, &mut rest, shared, renewal);
        shared.set_asleep(false);
        let Some(made) = made else { return };
        forward = made;
    }
}

/// Waits for a request and makes the model for it. `None` at the end of all work.
fn next(
    config: &EngineConfig,
    rest: &mut Rest,
    shared: &Shared,
    renewal: &mut Renewal,
) -> Option<Box<dyn Forward>> {
    loop {
        let task = match rest.waiting.pop_front() {
            Some(task) => task,
            None => rest.receiver.recv().ok()?,
        };
        if task.events.cancelled() || shared.aborted() {
            shared.ended(None);
            continue;
        }
        let started = Instant::now();
        match make(config, renewal) {
            Ok(forward) => {
                tracing::info!("the model was loaded again in {:.1} s", started.elapsed().as_secs_f64());
                rest.waiting.push_front(task);
                return Some(forward);
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

fn make(config: &EngineConfig, renewal: &mut Renewal) -> Result<Box<dyn Forward>, String> {
    let made = catch_unwind(AssertUnwindSafe(|| (renewal.make)()));
    let forward = made.map_err(|panic| message(&*panic))??;
    config.check(&*forward).map_err(|error| error.to_string())?;
    Ok(forward)
}
