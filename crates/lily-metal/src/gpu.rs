//! What the device asks of a GPU's API: the narrow place behind which Metal stands. Everything that is decided is decided in front
//! of it, so that it can be tested where no such GPU is (`fake`).

use std::ops::Range;
use std::time::Duration;

use lily_kernels::WordKind;
use lily_model::Mapped;
pub use lily_model::device::Span;

/// Why the GPU, or its compiler, did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct GpuError {
    /// What kind of failure.
    pub kind: Fault,
    /// The system's own words.
    pub text: String,
}

impl GpuError {
    /// Of this kind, in these words.
    pub fn new(kind: Fault, text: impl Into<String>) -> Self {
        GpuError { kind, text: text.into() }
    }
}

/// Kinds of failures, by what can be done about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// There is not enough memory.
    Memory,
    /// A text does not compile, or a pipeline cannot be made of it.
    Compiler,
    /// The system ended commands that took too long.
    Timeout,
    /// Commands touched memory that is not theirs, or failed by themselves; others can go on.
    Commands,
    /// The GPU is gone, or takes no more commands of this process.
    Lost,
}

/// The language versions that texts are compiled as, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    /// macOS 14: the first with bfloat.
    V3_1,
    /// macOS 15.
    V3_2,
    /// macOS 26: tensor operations.
    V4_0,
}

impl Language {
    /// All, newest first.
    pub const ALL: [Language; 3] = [Language::V4_0, Language::V3_2, Language::V3_1];

    /// `3.1`.
    pub fn name(self) -> &'static str {
        match self {
            Language::V3_1 => "3.1",
            Language::V3_2 => "3.2",
            Language::V4_0 => "4.0",
        }
    }
}

/// How commands reach a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Command buffers that know what they use.
    #[default]
    Classic,
    /// Metal 4: argument tables, and barriers for everything.
    Metal4,
}

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `Apple M3 Max`.
    pub name: String,
    /// `macOS 15.1 (24B83)`.
    pub system: String,
    /// The most bytes that should be in use at the same time (`recommendedMaxWorkingSetSize`).
    pub working_set: usize,
    /// The limit that somebody has set in place of the system's own (`iogpu.wired_limit_mb`), in bytes.
    pub wired_limit: Option<usize>,
    /// Bytes of memory of the whole machine.
    pub memory: usize,
    /// The most bytes of a buffer.
    pub longest_buffer: usize,
    /// Bytes of a page of memory.
    pub page: usize,
    /// Threadgroup memory of a threadgroup.
    pub threadgroup_memory: usize,
    /// It says that it has the functions of Metal 4.
    pub is_metal4: bool,
}

/// How warm the machine is, as the system puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thermal {
    /// Within limits.
    Nominal,
    /// Fans may be heard.
    Fair,
    /// Slowed down.
    Serious,
    /// Slowed down much.
    Critical,
}

impl Thermal {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Thermal::Nominal => "nominal",
            Thermal::Fair => "fair",
            Thermal::Serious => "serious",
            Thermal::Critical => "critical",
        }
    }
}

/// What holds a machine back, now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// Low power mode is on.
    pub is_low: bool,
    /// How warm it is.
    pub thermal: Thermal,
}

/// A function constant: its index, what it is, and its word.
pub type Constant = (usize, WordKind, u32);

/// What a pipeline allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most threads of a threadgroup, by the registers that the kernel takes.
    pub threads: usize,
    /// Threadgroup memory that the kernel has by itself.
    pub fixed_memory: usize,
    /// Threads of a simdgroup.
    pub simdgroup: usize,
}

/// A GPU, or what stands for one. A clone is the same GPU.
pub trait Gpu: Clone + Send + Sync + 'static {
    /// Memory that both sides see.
    type Buffer: Block;
    /// A compiled text.
    type Library: Send + Sync;
    /// A kernel with its constants.
    type Pipeline: Clone + Send + Sync;
    /// Commands that are being written down.
    type Commands: Commands<Buffer = Self::Buffer, Pipeline = Self::Pipeline, Submitted = Self::Submitted>;
    /// Commands that the GPU was given.
    type Submitted: Submitted;

    /// What it is.
    fn facts(&self) -> &Facts;

    /// The same GPU, with commands that reach it so. Buffers are made and used by one of the two.
    fn with_queue(&self, kind: QueueKind) -> Result<Self, GpuError>;

    /// Does something with it. Where the system throws an exception, that is an error.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError>;

    /// How commands reach it.
    fn queue_kind(&self) -> QueueKind;

    /// Bytes that are allocated on it now.
    fn allocated(&self) -> usize;

    /// What holds it back, now.
    fn power(&self) -> Power;

    /// A buffer of so many bytes, at least one, at an address that is a multiple of 256. `fill` writes what it holds at first; what it
    /// leaves is zero.
    fn buffer(
        &self,
        label: &str,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Self::Buffer, GpuError>;

    /// A buffer over whole pages of a file, which are not copied: neither side writes it.
    fn map(&self, label: &str, pages: &Mapped) -> Result<Self::Buffer, GpuError>;

    /// Asks the system to keep exactly these buffers where the GPU reaches them at once, where there is such a thing.
    fn keep_resident(&self, buffers: &[Self::Buffer]);

    /// Compiles a text, without fast math.
    fn library(&self, source: &str, language: Language) -> Result<Self::Library, GpuError>;

    /// What was compiled of a text before, as `metallib` writes it.
    fn precompiled(&self, library: &'static [u8]) -> Result<Self::Library, GpuError>;

    /// A kernel of a text, for threadgroups of `threads` threads.
    fn pipeline(
        &self,
        library: &Self::Library,
        name: &str,
        constants: &[Constant],
        threads: usize,
    ) -> Result<(Self::Pipeline, Limits), GpuError>;

    /// Keeps the machine code of all pipelines that were made for the next start, where there is a place for it.
    fn keep_pipelines(&self);

    /// Begins commands, which the GPU runs behind all that were submitted before.
    fn begin(&self, label: &str) -> Result<Self::Commands, GpuError>;
}

/// Memory that the GPU and this process see. A clone is the same memory. Only touched while no submitted commands use it.
pub trait Block: Clone + Send + Sync {
    /// Bytes.
    fn len(&self) -> usize;

    /// Whether there are none; there never are.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Panics
    /// If they end behind the block.
    fn read(&self, at: usize, into: &mut [u8]);

    /// Copies bytes in, from `at` on.
    ///
    /// # Panics
    /// If they end behind the block.
    fn write(&self, at: usize, bytes: &[u8]);
}

/// Commands that are being written down. Dispatches between two barriers may run beside each other; what `fill` and `copy` do is
/// ordered against everything else by itself.
pub trait Commands: Send {
    /// [`Gpu::Buffer`].
    type Buffer;
    /// [`Gpu::Pipeline`].
    type Pipeline;
    /// [`Gpu::Submitted`].
    type Submitted;

    /// The kernel of the next dispatches. What was bound before it holds no more.
    fn pipeline(&mut self, pipeline: &Self::Pipeline);

    /// Binds a buffer from byte `offset` on.
    fn buffer(&mut self, index: usize, buffer: &Self::Buffer, offset: usize);

    /// Binds words, which are copied.
    fn words(&mut self, index: usize, words: &[u32]);

    /// Bytes of threadgroup memory, a multiple of 16.
    fn threadgroup_memory(&mut self, index: usize, bytes: usize);

    /// Launches so many threadgroups of so many threads.
    fn dispatch(&mut self, groups: [usize; 3], threads: [usize; 3]);

    /// What follows sees what dispatches before it wrote.
    fn barrier(&mut self);

    /// Fills bytes with a value.
    fn fill(&mut self, buffer: &Self::Buffer, range: Range<usize>, byte: u8);

    /// Copies bytes, which do not overlap.
    fn copy(&mut self, from: &Self::Buffer, range: Range<usize>, to: &Self::Buffer, at: usize);

    /// Hands them to the GPU.
    fn submit(self) -> Self::Submitted;
}

/// Commands that the GPU was given.
pub trait Submitted: Send {
    /// Waits until they are done, but no longer than that: `None` where they are not. When the GPU began and ended, in seconds of its
    /// own clock.
    fn wait(&mut self, patience: Duration) -> Result<Option<Span>, GpuError>;
}
