//! Steps that choose their tokens on the device, with the next one under way while the host streams the tokens of the last.
//!
//! Whatever else is to be done with the model comes behind them: they are settled first, which means waited for and told. A request
//! that ends meanwhile is closed behind the step that ran too far for it, whose token goes nowhere.

use lily_model::{Choosing, ChoosingRow, DeviceError};

use super::{End, Worker};
use crate::task::Task;

impl Worker {
    /// Whether nothing is to be done but the next step of the same rows. A prompt that waits for memory or a place waits for one of
    /// them to end, and does not hold them up.
    pub(super) fn steps_may_go_on(&self) -> bool {
        let waits = |task: &Task| task.stalled.is_some() || self.rows.contains(&task.arrival);
        self.live.iter().all(|task| !task.events.cancelled() && waits(task)) && !self.may_admit()
    }

    /// Whether steps under way choose this one's tokens.
    pub(super) fn is_stepping(&self, arrival: u64) -> bool {
        self.sessions.under_way() > 0 && self.rows.contains(&arrival)
    }

    /// Whether the first that waits may find a place.
    fn may_admit(&self) -> bool {
        !self.waiting.is_empty() && !self.memory_short && self.live.len() < self.parallel
    }

    /// Waits for all steps under way and tells their tokens.
    pub(super) fn settle(&mut self) {
        self.take_steps(Vec::new());
    }

    /// One token for each of these that was not cancelled meanwhile, which the device chooses. With `alone` they are all who want
    /// one, and the next step may be under way when this returns. An error means that nothing has changed, or that the device failed.
    pub(super) fn step_on_device(&mut self, arrivals: &[u64], alone: bool) -> Result<(), DeviceError> {
        if self.sessions.under_way() == 0 {
            self.begin_steps(arrivals)?;
            if self.rows.is_empty() {
                return Ok(());
            }
        }
        let mut ends = Vec::new();
        let ahead = if alone && self.may_run_ahead() { self.sessions.ahead().map(|_| ()) } else { Ok(()) };
        match ahead {
            Ok(()) => self.take_step(&mut ends),
            Err(error) => self.lose_steps(&error, &mut ends),
        }
        if !ends.is_empty() {
            self.take_steps(ends);
        }
        Ok(())
    }

    fn begin_steps(&mut self, arrivals: &[u64]) -> Result<(), DeviceError> {
        self.rows.clear();
        let live =
            self.live.iter().filter(|task| arrivals.contains(&task.arrival) && !task.events.cancelled());
        let tasks: Vec<(&Task, Choosing)> =
            live.filter_map(|task| Some((task, task.choosing(&self.end_tokens)?))).collect();
        let mut rows = Vec::with_capacity(tasks.len());
        for (task, choosing) in &tasks {
            if let Some((sequence, token)) = task.sequence.zip(task.next_input()) {
                let (prompt, output) = (&task.prompt[..], &task.generated[..]);
                rows.push(ChoosingRow { sequence, token, choosing, prompt, output });
                self.rows.push(task.arrival);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.sessions.begin(&rows)
    }

    /// Whether another step may be submitted before the one under way is known: no prompt waits for its turn, and every row wants
    /// one more token than are under way.
    fn may_run_ahead(&self) -> bool {
        let under_way = self.sessions.under_way();
        let wants = |task: &Task| {
            task.stalled.is_some()
                || (task.remaining() == 0 && task.generated.len() + under_way < task.budget)
        };
        self.live.iter().all(wants) && self.steps_may_go_on()
    }

    /// Takes all steps under way, then ends the requests that have an end: theirs is not changed by what follows.
    fn take_steps(&mut self, mut ends: Vec<(u64, End)>) {
        while self.sessions.under_way() > 0 {
            self.take_step(&mut ends);
        }
        self.rows.clear();
        for (arrival, end) in ends {
            if let Some(at) = self.place(arrival) {
                self.end(at, end);
            }
        }
    }

    /// Takes the oldest step and tells its tokens, but those of requests that are at their end.
    fn take_step(&mut self, ends: &mut Vec<(u64, End)>) {
        let chosen = match self.sessions.take() {
            Ok(chosen) => chosen,
            Err(error) => return self.lose_steps(&error, ends),
        };
        for (arrival, chosen) in self.rows.iter().zip(chosen) {
            let Some(task) = self.live.iter_mut().find(|task| task.arrival == *arrival) else { continue };
            if ends.iter().any(|(ended, _)| ended == arrival) {
                continue;
            }
            task.fed += 1;
            match task.take_chosen(chosen, &self.end_tokens) {
                Ok(None) => {}
                Ok(Some(reason)) => ends.push((*arrival, End::Finished(reason))),
                Err(error) => ends.push((*arrival, error.into())),
            }
        }
    }

    /// The steps under way are lost, and with them the states of their rows.
    fn lose_steps(&self, error: &DeviceError, ends: &mut Vec<(u64, End)>) {
        for arrival in &self.rows {
            if ends.iter().all(|(ended, _)| ended != arrival) {
                ends.push((*arrival, End::Failed(error.to_string())));
            }
        }
    }
}
