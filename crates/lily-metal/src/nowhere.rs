//! The GPU of a system without Metal: there is none, and whoever has one can do anything with it.

use std::ops::Range;
use std::time::Duration;

use lily_model::Mapped;

use crate::gpu::{
    Block, Commands, Constant, Facts, Gpu, GpuError, Language, Limits, Power, QueueKind, Span, Submitted,
};

/// No GPU; no value of it exists.
#[derive(Clone, Copy, Debug)]
pub enum NoGpu {}

impl Gpu for NoGpu {
    type Buffer = NoGpu;
    type Library = NoGpu;
    type Pipeline = NoGpu;
    type Commands = NoGpu;
    type Submitted = NoGpu;

    fn facts(&self) -> &Facts {
        match *self {}
    }

    fn with_queue(&self, _: QueueKind) -> Result<NoGpu, GpuError> {
        match *self {}
    }

    fn guarded<T>(&self, _: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        match *self {}
    }

    fn queue_kind(&self) -> QueueKind {
        match *self {}
    }

    fn allocated(&self) -> usize {
        match *self {}
    }

    fn power(&self) -> Power {
        match *self {}
    }

    fn buffer(&self, _: &str, _: usize, _: &mut dyn FnMut(&mut [u8])) -> Result<NoGpu, GpuError> {
        match *self {}
    }

    fn map(&self, _: &str, _: &Mapped) -> Result<NoGpu, GpuError> {
        match *self {}
    }

    fn keep_resident(&self, _: &[NoGpu]) {}

    fn library(&self, _: &str, _: Language) -> Result<NoGpu, GpuError> {
        match *self {}
    }

    fn precompiled(&self, _: &'static [u8]) -> Result<NoGpu, GpuError> {
        match *self {}
    }

    fn pipeline(&self, _: &NoGpu, _: &str, _: &[Constant], _: usize) -> Result<(NoGpu, Limits), GpuError> {
        match *self {}
    }

    fn keep_pipelines(&self) {}

    fn begin(&self, _: &str) -> Result<NoGpu, GpuError> {
        match *self {}
    }
}

impl Block for NoGpu {
    fn len(&self) -> usize {
        match *self {}
    }

    fn read(&self, _: usize, _: &mut [u8]) {}

    fn write(&self, _: usize, _: &[u8]) {}
}

impl Commands for NoGpu {
    type Buffer = NoGpu;
    type Pipeline = NoGpu;
    type Submitted = NoGpu;

    fn pipeline(&mut self, _: &NoGpu) {}

    fn buffer(&mut self, _: usize, _: &NoGpu, _: usize) {}

    fn words(&mut self, _: usize, _: &[u32]) {}

    fn threadgroup_memory(&mut self, _: usize, _: usize) {}

    fn dispatch(&mut self, _: [usize; 3], _: [usize; 3]) {}

    fn barrier(&mut self) {}

    fn fill(&mut self, _: &NoGpu, _: Range<usize>, _: u8) {}

    fn copy(&mut self, _: &NoGpu, _: Range<usize>, _: &NoGpu, _: usize) {}

    fn submit(self) -> NoGpu {
        self
    }
}

impl Submitted for NoGpu {
    fn wait(&mut self, _: Duration) -> Result<Option<Span>, GpuError> {
        match *self {}
    }
}
