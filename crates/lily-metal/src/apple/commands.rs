//! Commands of either queue, and what came of them.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::classic::Classic;
use super::exception::caught;
use super::metal4::Metal4;
use super::{AppleBuffer, ApplePipeline};
use crate::gpu::{Commands, Fault, GpuError, Span, Submitted};

/// Commands that are being written down.
pub struct AppleCommands(pub(super) Form);

/// For which queue.
pub(super) enum Form {
    Classic(Classic),
    Metal4(Metal4),
}

/// The same for both; what a queue of Metal 4 throws is kept until it is submitted.
macro_rules! both {
    ($commands:expr, $form:ident => $told:expr) => {
        match $commands {
            Form::Classic($form) => $told,
            Form::Metal4(metal4) => metal4.tell(|$form| $told),
        }
    };
}

impl Commands for AppleCommands {
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;
    type Submitted = AppleSubmitted;

    fn pipeline(&mut self, pipeline: &ApplePipeline) {
        both!(&mut self.0, form => form.pipeline(pipeline));
    }

    fn buffer(&mut self, index: usize, buffer: &AppleBuffer, offset: usize) {
        both!(&mut self.0, form => form.buffer(index, buffer, offset));
    }

    fn words(&mut self, index: usize, words: &[u32]) {
        both!(&mut self.0, form => form.words(index, words));
    }

    fn threadgroup_memory(&mut self, index: usize, bytes: usize) {
        both!(&mut self.0, form => form.threadgroup_memory(index, bytes));
    }

    fn dispatch(&mut self, groups: [usize; 3], threads: [usize; 3]) {
        both!(&mut self.0, form => form.dispatch(groups, threads));
    }

    fn barrier(&mut self) {
        both!(&mut self.0, form => form.barrier());
    }

    fn fill(&mut self, buffer: &AppleBuffer, range: Range<usize>, byte: u8) {
        both!(&mut self.0, form => form.fill(buffer, range, byte));
    }

    fn copy(&mut self, from: &AppleBuffer, range: Range<usize>, to: &AppleBuffer, at: usize) {
        both!(&mut self.0, form => form.copy(from, range, to, at));
    }

    fn submit(self) -> AppleSubmitted {
        match self.0 {
            Form::Classic(form) => form.submit(),
            Form::Metal4(form) => caught(|| Ok(form.submit())).unwrap_or_else(AppleSubmitted::failed),
        }
    }
}

/// What came of commands.
pub(super) type Outcome = Result<Span, GpuError>;

/// Commands that the GPU was given.
pub struct AppleSubmitted {
    done: Receiver<Outcome>,
    outcome: Option<Outcome>,
}

impl AppleSubmitted {
    /// Commands whose outcome will be told.
    pub(super) fn new(done: Receiver<Outcome>) -> Self {
        AppleSubmitted { done, outcome: None }
    }

    /// Commands that could not be written down.
    pub(super) fn failed(error: GpuError) -> Self {
        AppleSubmitted { done: channel().1, outcome: Some(Err(error)) }
    }
}

impl Submitted for AppleSubmitted {
    fn wait(&mut self, patience: Duration) -> Result<Option<Span>, GpuError> {
        if self.outcome.is_none() {
            match self.done.recv_timeout(patience) {
                Ok(outcome) => self.outcome = Some(outcome),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(GpuError::new(Fault::Lost, "Metal dropped commands without a word"));
                }
            }
        }
        self.outcome.clone().map_or(Ok(None), |outcome| outcome.map(Some))
    }
}
