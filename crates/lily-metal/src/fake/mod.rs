//! A GPU that records what it is told and touches no hardware: for tests. It complains of what a real one would not: memory that the
//! host touches while submitted commands use it, more submissions on their way than there may be, binds that are missing.
//!
//! What is recorded can be run by somebody ([`FakeGpu::with_executor`]); then only when it is waited for, which is as late as a GPU
//! may, so that a host that is too early finds the wrong bytes.

mod memory;
mod record;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use memory::FakeBuffer;
pub use record::{FakeCommands, FakePipeline, FakeSubmitted, Recorded};

use lily_kernels::Activation;
use lily_model::Mapped;

use crate::gpu::{Constant, Facts, Fault, Gpu, GpuError, Language, Limits, Power, QueueKind, Thermal};

/// A submission as it was told.
#[derive(Clone, Debug)]
pub struct Submission {
    /// What it was begun as.
    pub label: String,
    /// In order.
    pub commands: Vec<Recorded>,
}

/// What is to go wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Submissions by their numbers, from 0 on, and how each fails.
    pub submissions: Vec<(usize, GpuError)>,
    /// Commands cannot be begun.
    pub begins: Option<GpuError>,
    /// These submissions never end.
    pub stuck: Vec<usize>,
    /// Words of a source that the compiler does not take.
    pub source: Option<&'static str>,
    /// Languages that it does not know.
    pub unknown: Vec<Language>,
    /// Queues of Metal 4 cannot be made, or lose what is copied.
    pub metal4: Option<Metal4Fault>,
    /// The most threads that pipelines allow; 0 for as many as asked.
    pub threads: usize,
}

/// What goes wrong with queues of Metal 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metal4Fault {
    /// There are none.
    Missing,
    /// Their commands end, and copied nothing.
    Wrong,
    /// Their commands do not end.
    Stuck,
    /// An exception is thrown when one is made.
    ThrowsWhenMade,
    /// An exception is thrown when commands are begun.
    ThrowsWhenUsed,
}

/// What is thrown: [`Gpu::guarded`] catches it, and nothing else does.
struct Thrown;

fn throw() -> ! {
    // Without the message of a panic.
    std::panic::resume_unwind(Box::new(Thrown))
}

/// Who runs what was recorded.
pub type Executor = Arc<dyn Fn(&Submission) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) submissions: Vec<Submission>,
    numbers: usize,
    /// Numbers of those that are not done.
    pub(crate) in_flight: Vec<usize>,
    most_in_flight: usize,
    begun_in_flight: Vec<usize>,
    wrongs: Vec<String>,
    allocated: usize,
    pub(crate) mapped: usize,
    own: Vec<(String, usize)>,
    buffers: u64,
    libraries: usize,
    precompiled: usize,
    pipelines: Vec<FakePipeline>,
    resident: usize,
    kept: usize,
}

/// A GPU that records. A clone is the same.
#[derive(Clone)]
pub struct FakeGpu {
    facts: Facts,
    queue: QueueKind,
    faults: Arc<Mutex<Faults>>,
    pub(crate) executor: Option<Executor>,
    pub(crate) log: Arc<Mutex<Log>>,
}

impl FakeGpu {
    /// As large as a Mac with 32 GB.
    pub fn new() -> Self {
        let facts = Facts {
            name: "Apple GPU of paper".into(),
            system: "macOS of paper".into(),
            working_set: 24 << 30,
            wired_limit: None,
            memory: 32 << 30,
            longest_buffer: 16 << 30,
            // That of the machines that tests run on.
            page: 4096,
            threadgroup_memory: 32 << 10,
            is_metal4: false,
        };
        FakeGpu {
            facts,
            queue: QueueKind::Classic,
            faults: Arc::default(),
            executor: None,
            log: Arc::default(),
        }
    }

    /// With other facts.
    #[must_use]
    pub fn with_facts(self, change: impl FnOnce(&mut Facts)) -> Self {
        let mut facts = self.facts;
        change(&mut facts);
        FakeGpu { facts, ..self }
    }

    /// Whose commands are run.
    #[must_use]
    pub fn with_executor(self, executor: Executor) -> Self {
        FakeGpu { executor: Some(executor), ..self }
    }

    /// From now on, this goes wrong.
    pub fn fail(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> Faults {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All submissions since the last call.
    pub fn take_submissions(&self) -> Vec<Submission> {
        std::mem::take(&mut self.log().submissions)
    }

    /// How many submissions there were.
    pub fn submissions(&self) -> usize {
        self.log().numbers
    }

    /// The most submissions that were not done at the same time.
    pub fn most_in_flight(&self) -> usize {
        self.log().most_in_flight
    }

    /// Of each submission, how many were on their way when it was begun.
    pub fn begun_in_flight(&self) -> Vec<usize> {
        self.log().begun_in_flight.clone()
    }

    /// What a real GPU would have let pass, or not forgiven.
    pub fn wrongs(&self) -> Vec<String> {
        self.log().wrongs.clone()
    }

    /// Texts that were compiled, and pipelines that were made.
    pub fn compiled(&self) -> (usize, usize) {
        let log = self.log();
        (log.libraries, log.pipelines.len())
    }

    /// Libraries that were taken as they were compiled before.
    pub fn precompiled(&self) -> usize {
        self.log().precompiled
    }

    /// Bytes of buffers over files, and of buffers of its own with this label that were ever made.
    pub fn mapped_and_own(&self, label: &str) -> (usize, usize) {
        let log = self.log();
        let own = log.own.iter().filter(|(of, _)| of == label).map(|(_, bytes)| bytes).sum();
        (log.mapped, own)
    }

    /// Buffers that the system was asked to keep, and how often pipelines were to be kept.
    pub fn kept(&self) -> (usize, usize) {
        let log = self.log();
        (log.resident, log.kept)
    }

    pub(crate) fn wrong(&self, what: String) {
        self.log().wrongs.push(what);
    }

    pub(crate) fn submitted(&self, submission: Submission) -> usize {
        let mut log = self.log();
        log.submissions.push(submission);
        log.numbers += 1;
        log.numbers - 1
    }
}

impl Default for FakeGpu {
    fn default() -> Self {
        FakeGpu::new()
    }
}

impl Log {
    pub(crate) fn begun(&mut self) {
        let now = self.in_flight.len();
        self.begun_in_flight.push(now);
    }

    pub(crate) fn flies(&mut self, number: usize) {
        self.in_flight.push(number);
        self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
    }

    pub(crate) fn next_buffer(&mut self, bytes: usize) -> u64 {
        self.buffers += 1;
        self.allocated += bytes;
        self.buffers
    }

    pub(crate) fn freed(&mut self, bytes: usize) {
        self.allocated -= bytes;
    }
}

/// A compiled text: the type of activations in its source.
pub struct FakeLibrary(Activation);

impl Gpu for FakeGpu {
    type Buffer = FakeBuffer;
    type Library = FakeLibrary;
    type Pipeline = FakePipeline;
    type Commands = FakeCommands;
    type Submitted = FakeSubmitted;

    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn with_queue(&self, kind: QueueKind) -> Result<FakeGpu, GpuError> {
        match (kind, self.faults().metal4) {
            (QueueKind::Metal4, Some(Metal4Fault::Missing)) => {
                Err(GpuError::new(Fault::Commands, "no queue of paper"))
            }
            (QueueKind::Metal4, Some(Metal4Fault::ThrowsWhenMade)) => throw(),
            _ => Ok(FakeGpu { queue: kind, ..self.clone() }),
        }
    }

    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|thrown| {
            match thrown.is::<Thrown>() {
                true => Err(GpuError::new(Fault::Commands, "an exception of paper")),
                false => std::panic::resume_unwind(thrown),
            }
        })
    }

    fn queue_kind(&self) -> QueueKind {
        self.queue
    }

    fn allocated(&self) -> usize {
        self.log().allocated
    }

    fn power(&self) -> Power {
        Power { is_low: false, thermal: Thermal::Nominal }
    }

    fn buffer(
        &self,
        label: &str,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<FakeBuffer, GpuError> {
        self.log().own.push((label.to_owned(), bytes));
        FakeBuffer::new(self, bytes, fill)
    }

    fn map(&self, _label: &str, pages: &Mapped) -> Result<FakeBuffer, GpuError> {
        Ok(FakeBuffer::over(self, pages))
    }

    fn keep_resident(&self, buffers: &[FakeBuffer]) {
        self.log().resident = buffers.len();
    }

    fn library(&self, source: &str, language: Language) -> Result<FakeLibrary, GpuError> {
        let faults = self.faults();
        if faults.unknown.contains(&language) {
            return Err(GpuError::new(Fault::Compiler, "unknown language version"));
        }
        if faults.source.is_some_and(|words| source.contains(words)) {
            return Err(GpuError::new(Fault::Compiler, "program_source:7:1: error: of paper"));
        }
        let named =
            |a: &Activation| source.contains(&format!("#define ACT_IS_{}\n", a.name().to_uppercase()));
        let Some(activation) = Activation::ALL.into_iter().find(named) else {
            return Err(GpuError::new(Fault::Compiler, "the source does not say what ACT is"));
        };
        self.log().libraries += 1;
        Ok(FakeLibrary(activation))
    }

    fn precompiled(&self, library: &'static [u8]) -> Result<FakeLibrary, GpuError> {
        let named = |a: &Activation| library.starts_with(format!("paper:{} ", a.name()).as_bytes());
        let Some(activation) = Activation::ALL.into_iter().find(named) else {
            return Err(GpuError::new(Fault::Compiler, "no library of paper"));
        };
        self.log().precompiled += 1;
        Ok(FakeLibrary(activation))
    }

    fn pipeline(
        &self,
        library: &FakeLibrary,
        name: &str,
        constants: &[Constant],
        threads: usize,
    ) -> Result<(FakePipeline, Limits), GpuError> {
        let allowed = match self.faults().threads {
            0 => threads,
            most => most,
        };
        let words = constants.iter().map(|constant| constant.2).collect();
        let pipeline = FakePipeline { activation: library.0, name: name.to_owned(), constants: words };
        self.log().pipelines.push(pipeline.clone());
        Ok((pipeline, Limits { threads: allowed, fixed_memory: 0, simdgroup: 32 }))
    }

    fn keep_pipelines(&self) {
        self.log().kept += 1;
    }

    fn begin(&self, label: &str) -> Result<FakeCommands, GpuError> {
        if self.queue == QueueKind::Metal4 && self.faults().metal4 == Some(Metal4Fault::ThrowsWhenUsed) {
            throw();
        }
        if let Some(error) = self.faults().begins {
            return Err(error);
        }
        self.log().begun();
        Ok(FakeCommands::new(self, label))
    }
}
