//! A turn of decode: one token for everybody who is past the prompt.
//!
//! Whose tokens the device can choose is a matter of the request alone, not of who is beside it: the device adds weights up in float,
//! so that once in a million tokens it may choose another one than the host.

use lily_model::DeviceError;

use super::{End, Worker};
use crate::task::Task;

impl Worker {
    /// One token for each, in batches; with steps under way, those.
    pub(super) fn decode_step(&mut self) {
        let able = self.live.iter().filter(|task| task.stalled.is_none() && task.remaining() == 0);
        let (mut device, mut host) = (Vec::new(), Vec::new());
        for task in able {
            let on_device = self.is_stepping(task.arrival) || self.can_step(task);
            if on_device { device.push(task.arrival) } else { host.push(task.arrival) }
        }
        device.sort_unstable();
        host.sort_unstable();
        let most = self.sessions.max_rows();
        let alone = host.is_empty() && device.len() <= most;
        for batch in device.chunks(most) {
            self.serve(batch, |worker, batch| worker.step_on_device(batch, alone));
        }
        for batch in host.chunks(most) {
            self.serve(batch, Self::decode_batch);
        }
    }

    /// Whether the device can choose this one's next token. What it would have to know is put together for the question, which is why
    /// those whose steps are under way, and devices that never choose, are not asked.
    fn can_step(&self, task: &Task) -> bool {
        self.sessions.chooses()
            && task.choosing(&self.end_tokens).is_some_and(|choosing| self.sessions.can_choose(&choosing))
    }

    fn serve(&mut self, batch: &[u64], step: impl Fn(&mut Self, &[u64]) -> Result<(), DeviceError>) {
        let Err(error) = step(self, batch) else { return };
        if batch.len() == 1 || matches!(error, DeviceError::Failed(_) | DeviceError::Lost(_)) {
            batch.iter().for_each(|arrival| self.fail(*arrival, &error));
            return;
        }
        // Nothing has changed, and one row may be the cause: each goes alone.
        for arrival in batch {
            if let Err(error) = step(self, &[*arrival]) {
                self.fail(*arrival, &error);
            }
        }
    }

    /// One token for each of these that was not cancelled meanwhile, which the host chooses.
    fn decode_batch(&mut self, arrivals: &[u64]) -> Result<(), DeviceError> {
        let mut rows = Vec::with_capacity(arrivals.len());
        let mut served = Vec::with_capacity(arrivals.len());
        for (at, task) in self.live.iter().enumerate() {
            let row = task.sequence.zip(task.next_input());
            if let Some(row) = row.filter(|_| arrivals.contains(&task.arrival) && !task.events.cancelled()) {
                rows.push(row);
                served.push(at);
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        self.sessions.decode(&rows)?;
        let mut ends = Vec::new();
        for (row, at) in served.into_iter().enumerate() {
            self.live[at].fed += 1;
            let chosen = if self.live[at].at_front() { self.take_token(at, row) } else { Ok(None) };
            match chosen {
                Ok(None) => {}
                Ok(Some(reason)) => ends.push((at, End::Finished(reason))),
                Err(error) => ends.push((at, error.into())),
            }
        }
        // From the back, so that the places of the others stay what they are.
        ends.into_iter().rev().for_each(|(at, end)| self.end(at, end));
        Ok(())
    }
}
