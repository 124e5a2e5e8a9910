//! Commands of paper.

use std::ops::Range;
use std::time::Duration;

use lily_kernels::Activation;

use super::{FakeBuffer, FakeGpu, Metal4Fault, Submission};
use crate::gpu::{Commands, Gpu as _, GpuError, QueueKind, Span, Submitted};

/// A kernel with its constants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakePipeline {
    /// The type of activations that its text was compiled for.
    pub activation: Activation,
    /// Of the kernel.
    pub name: String,
    /// Its constants, as words.
    pub constants: Vec<u32>,
}

/// A command as it was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    /// A launch, with everything that was bound.
    Dispatch {
        /// The kernel.
        pipeline: FakePipeline,
        /// By number: buffer and offset.
        buffers: Vec<(usize, FakeBuffer, usize)>,
        /// By number: what is passed by value.
        words: Vec<(usize, Vec<u32>)>,
        /// By number: bytes of threadgroup memory.
        memory: Vec<(usize, usize)>,
        /// Threadgroups.
        groups: [usize; 3],
        /// Threads of each.
        threads: [usize; 3],
    },
    /// What follows sees what was written.
    Barrier,
    /// Bytes are filled.
    Fill {
        /// Of which buffer.
        buffer: FakeBuffer,
        /// Which.
        range: Range<usize>,
        /// With what.
        byte: u8,
    },
    /// Bytes are copied.
    Copy {
        /// From which buffer.
        from: FakeBuffer,
        /// Which of its bytes.
        range: Range<usize>,
        /// To which.
        to: FakeBuffer,
        /// Where.
        at: usize,
    },
}

impl Recorded {
    fn buffers(&self) -> Vec<&FakeBuffer> {
        match self {
            Recorded::Dispatch { buffers, .. } => buffers.iter().map(|bound| &bound.1).collect(),
            Recorded::Barrier => Vec::new(),
            Recorded::Fill { buffer, .. } => vec![buffer],
            Recorded::Copy { from, to, .. } => vec![from, to],
        }
    }
}

/// Commands that are being written down.
pub struct FakeCommands {
    gpu: FakeGpu,
    submission: Submission,
    pipeline: Option<FakePipeline>,
    buffers: Vec<(usize, FakeBuffer, usize)>,
    words: Vec<(usize, Vec<u32>)>,
    memory: Vec<(usize, usize)>,
}

impl FakeCommands {
    pub(super) fn new(gpu: &FakeGpu, label: &str) -> Self {
        FakeCommands {
            gpu: gpu.clone(),
            submission: Submission { label: label.to_owned(), commands: Vec::new() },
            pipeline: None,
            buffers: Vec::new(),
            words: Vec::new(),
            memory: Vec::new(),
        }
    }
}

impl Commands for FakeCommands {
    type Buffer = FakeBuffer;
    type Pipeline = FakePipeline;
    type Submitted = FakeSubmitted;

    fn pipeline(&mut self, pipeline: &FakePipeline) {
        self.pipeline = Some(pipeline.clone());
        self.buffers.clear();
        self.words.clear();
        self.memory.clear();
    }

    fn buffer(&mut self, index: usize, buffer: &FakeBuffer, offset: usize) {
        self.buffers.push((index, buffer.clone(), offset));
    }

    fn words(&mut self, index: usize, words: &[u32]) {
        self.words.push((index, words.to_vec()));
    }

    fn threadgroup_memory(&mut self, index: usize, bytes: usize) {
        if !bytes.is_multiple_of(16) {
            self.gpu.wrong(format!("{bytes} bytes of threadgroup memory are no multiple of 16"));
        }
        self.memory.push((index, bytes));
    }

    fn dispatch(&mut self, groups: [usize; 3], threads: [usize; 3]) {
        let Some(pipeline) = self.pipeline.clone() else {
            return self.gpu.wrong("a dispatch without a pipeline".into());
        };
        let (buffers, words, memory) = (self.buffers.clone(), self.words.clone(), self.memory.clone());
        let dispatch = Recorded::Dispatch { pipeline, buffers, words, memory, groups, threads };
        self.submission.commands.push(dispatch);
    }

    fn barrier(&mut self) {
        self.submission.commands.push(Recorded::Barrier);
    }

    fn fill(&mut self, buffer: &FakeBuffer, range: Range<usize>, byte: u8) {
        self.submission.commands.push(Recorded::Fill { buffer: buffer.clone(), range, byte });
    }

    fn copy(&mut self, from: &FakeBuffer, range: Range<usize>, to: &FakeBuffer, at: usize) {
        self.submission.commands.push(Recorded::Copy { from: from.clone(), range, to: to.clone(), at });
    }

    fn submit(self) -> FakeSubmitted {
        let gpu = self.gpu;
        let commands = self.submission.commands.clone();
        let number = gpu.submitted(self.submission);
        commands.iter().flat_map(Recorded::buffers).for_each(|buffer| buffer.used_by(number));
        gpu.log().flies(number);
        let label = String::new();
        FakeSubmitted { submission: Submission { label, commands }, number, gpu }
    }
}

/// Commands that were submitted.
pub struct FakeSubmitted {
    gpu: FakeGpu,
    number: usize,
    submission: Submission,
}

impl Submitted for FakeSubmitted {
    fn wait(&mut self, _patience: Duration) -> Result<Option<Span>, GpuError> {
        let faults = self.gpu.faults();
        let metal4 = faults.metal4.filter(|_| self.gpu.queue_kind() == QueueKind::Metal4);
        if faults.stuck.contains(&self.number) || metal4 == Some(Metal4Fault::Stuck) {
            return Ok(None);
        }
        let failed = faults.submissions.into_iter().find(|(number, _)| *number == self.number);
        if failed.is_none()
            && metal4.is_none()
            && let Some(run) = &self.gpu.executor
        {
            run(&self.submission);
        }
        self.gpu.log().in_flight.retain(|number| *number != self.number);
        let start = self.number as f64;
        failed.map_or(Ok(Some(Span { start, end: start + 0.5 })), |(_, error)| Err(error))
    }
}
