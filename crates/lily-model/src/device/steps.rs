//! Steps that choose their tokens on the device and hand them to the next step: which are under way, and whose states they moved.

use std::sync::Arc;

use lily_kernels::select::NOT_FINITE;

use super::{Batch, Choices, Device};
use crate::plan::Plan;
use crate::{DeviceError, SequenceId};

/// Steps that may be submitted before the oldest of them is waited for: one runs, and the next one is there when it ends.
pub const STEPS_UNDER_WAY: usize = 2;

/// What a step chose for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The token, or `NONE_LEFT` or `NOT_FINITE` of `lily_kernels::select`.
    pub chosen: u32,
    /// The sequence took the token that was handed to this step; false for one that was done before it.
    pub moved: bool,
}

/// A run of steps of one plan over the same sequences.
#[derive(Debug)]
pub struct Steps {
    plan: Arc<Plan>,
    sequences: Vec<SequenceId>,
    /// Tokens behind which each sequence is done.
    ends: Vec<Vec<u32>>,
    done: Vec<bool>,
    submitted: usize,
    taken: usize,
    /// Steps for which there is room.
    most: usize,
}

impl Steps {
    /// Tells the device what `most` steps start from, for which there is room; none is submitted yet.
    pub fn begin<D: Device + ?Sized>(
        device: &mut D,
        plan: Arc<Plan>,
        batch: &Batch<'_>,
        choices: &Choices,
        most: usize,
    ) -> Result<Self, DeviceError> {
        if batch.positions.iter().any(|p| *p as usize + most > plan.context) {
            return Err(DeviceError::Unknown(format!("{most} steps go beyond the context of their plan")));
        }
        device.begin_steps(&plan, batch, choices)?;
        Ok(Steps {
            sequences: batch.sequences.to_vec(),
            ends: choices.requests.iter().map(|request| request.end_tokens.clone()).collect(),
            done: vec![false; batch.sequences.len()],
            plan,
            submitted: 0,
            taken: 0,
            most,
        })
    }

    /// The sequences, row by row.
    pub fn sequences(&self) -> &[SequenceId] {
        &self.sequences
    }

    /// Steps that were submitted and not taken.
    pub fn under_way(&self) -> usize {
        self.submitted - self.taken
    }

    /// Submits one more step; false, and nothing has happened, if there is no room for it or too many are under way.
    pub fn submit<D: Device + ?Sized>(&mut self, device: &mut D) -> Result<bool, DeviceError> {
        if self.submitted == self.most || self.under_way() == STEPS_UNDER_WAY {
            return Ok(false);
        }
        device.submit_step(&self.plan, self.submitted)?;
        self.submitted += 1;
        Ok(true)
    }

    /// Waits for the oldest step under way. What a sequence was behind the step with which it was done, it still is.
    pub fn take<D: Device + ?Sized>(&mut self, device: &mut D) -> Result<Vec<Taken>, DeviceError> {
        if self.under_way() == 0 {
            return Err(DeviceError::Unknown("no step is under way".into()));
        }
        let step = self.taken;
        self.taken += 1;
        let chosen = device.take_step(&self.plan, step)?;
        let moved: Vec<bool> = self.done.iter().map(|done| !done).collect();
        let of_moved = self.sequences.iter().zip(&moved).filter(|(_, moved)| **moved);
        device.move_states(&of_moved.map(|(sequence, _)| *sequence).collect::<Vec<_>>())?;
        for ((done, ends), token) in self.done.iter_mut().zip(&self.ends).zip(&chosen) {
            *done |= *token >= NOT_FINITE || ends.contains(token);
        }
        Ok(chosen.into_iter().zip(moved).map(|(chosen, moved)| Taken { chosen, moved }).collect())
    }
}

/// Runs `count` steps and returns what each chose, `[count][slots]`. There must be room for all tokens.
pub fn hand_over<D: Device + ?Sized>(
    device: &mut D,
    plan: &Plan,
    batch: &Batch<'_>,
    choices: &Choices,
    count: usize,
) -> Result<Vec<Vec<u32>>, DeviceError> {
    let mut steps = Steps::begin(device, Arc::new(plan.clone()), batch, choices, count)?;
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        while steps.submit(device)? {}
        chosen.push(steps.take(device)?.into_iter().map(|row| row.chosen).collect());
    }
    Ok(chosen)
}
