//! Apple's GPUs, by Metal. The only unsafe code of the crate, and nothing is decided here. Type-checked and linked on Linux
//! (`scripts/test-mac`); whoever runs it first on a Mac begins with `scripts/mac-check`.
//!
//! Buffers are shared. With the classic queue they are tracked: Metal itself orders encoders and command buffers that use the same memory,
//! so that barriers are only needed between the dispatches of one encoder. With that of Metal 4 (`metal4`) nothing is.

mod archive;
mod classic;
mod commands;
mod exception;
mod limits;
mod memory;
mod metal4;

use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use dispatch2::DispatchData;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSProcessInfo, NSProcessInfoThermalState, NSString};
use objc2_metal::{
    MTLAllocation, MTLCommandQueue, MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState,
    MTLCreateSystemDefaultDevice, MTLDataType, MTLDevice, MTLFunctionConstantValues, MTLGPUFamily,
    MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode, MTLResidencySet,
    MTLResidencySetDescriptor, MTLResourceOptions,
};

pub use commands::{AppleCommands, AppleSubmitted};
pub use memory::AppleBuffer;

use crate::gpu::{Constant, Facts, Fault, Gpu, GpuError, Language, Limits, Power, QueueKind, Thermal};
use archive::Archive;
use classic::Classic;
use commands::Form;
use exception::caught;
use lily_kernels::WordKind;
use lily_model::Mapped;
use lily_model::pack::PAGE;
use memory::Resident;
use metal4::{Metal4, Queue4};

/// Why this machine has no GPU to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Metal offers none: a virtual machine, or a session without a GPU.
    #[error("Metal offers no GPU on this machine")]
    Device,
    /// One without the functions that the kernels use.
    #[error("{0} is not an Apple GPU of an M1 or later")]
    Old(String),
}

/// The GPU of this machine. A clone is the same.
#[derive(Clone)]
pub struct AppleGpu(Arc<Inner>);

struct Inner {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// In place of `queue`.
    metal4: Option<Arc<Queue4>>,
    archive: Option<Arc<Archive>>,
    facts: Facts,
}

/// A compiled text.
pub struct AppleLibrary(Retained<ProtocolObject<dyn MTLLibrary>>);

/// A kernel with its constants.
#[derive(Clone)]
pub struct ApplePipeline(pub(crate) Retained<ProtocolObject<dyn MTLComputePipelineState>>);

impl AppleGpu {
    /// Opens it. Machine code is kept in `archive`, a file, where there is one.
    ///
    /// # Errors
    /// What is missing.
    pub fn open(archive: Option<PathBuf>) -> Result<Self, Missing> {
        autoreleasepool(|_| {
            let device = MTLCreateSystemDefaultDevice().ok_or(Missing::Device)?;
            let name = device.name().to_string();
            if !device.supportsFamily(MTLGPUFamily::Apple7) {
                return Err(Missing::Old(name));
            }
            let queue = device.newCommandQueue().ok_or(Missing::Device)?;
            let system = NSProcessInfo::processInfo().operatingSystemVersionString();
            let facts = Facts {
                name,
                system: format!("macOS {}", system.to_string().trim_start_matches("Version ")),
                working_set: usize::try_from(device.recommendedMaxWorkingSetSize()).unwrap_or(usize::MAX),
                wired_limit: limits::wired(),
                memory: usize::try_from(NSProcessInfo::processInfo().physicalMemory()).unwrap_or(usize::MAX),
                longest_buffer: device.maxBufferLength(),
                page: PAGE,
                threadgroup_memory: device.maxThreadgroupMemoryLength(),
                is_metal4: device.supportsFamily(MTLGPUFamily::Metal4),
            };
            let archive = archive.and_then(|file| Archive::open(&device, file)).map(Arc::new);
            Ok(AppleGpu(Arc::new(Inner { device, queue, metal4: None, archive, facts })))
        })
    }

    /// The set that new buffers are kept in memory by, where the queue needs that.
    fn resident(&self) -> Option<&Arc<Resident>> {
        self.0.metal4.as_ref().map(|queue| &queue.resident)
    }
}

fn words(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

fn compiler(error: &NSError) -> GpuError {
    GpuError::new(Fault::Compiler, words(error))
}

impl Gpu for AppleGpu {
    type Buffer = AppleBuffer;
    type Library = AppleLibrary;
    type Pipeline = ApplePipeline;
    type Commands = AppleCommands;
    type Submitted = AppleSubmitted;

    fn facts(&self) -> &Facts {
        &self.0.facts
    }

    fn with_queue(&self, kind: QueueKind) -> Result<AppleGpu, GpuError> {
        let Inner { device, queue, archive, facts, .. } = &*self.0;
        let metal4 = match kind {
            QueueKind::Classic => None,
            QueueKind::Metal4 => Some(Arc::new(caught(|| autoreleasepool(|_| Queue4::new(device)))?)),
        };
        Ok(AppleGpu(Arc::new(Inner {
            device: device.clone(),
            queue: queue.clone(),
            metal4,
            archive: archive.clone(),
            facts: facts.clone(),
        })))
    }

    fn queue_kind(&self) -> QueueKind {
        match self.0.metal4 {
            Some(_) => QueueKind::Metal4,
            None => QueueKind::Classic,
        }
    }

    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        caught(work)
    }

    fn allocated(&self) -> usize {
        self.0.device.currentAllocatedSize()
    }

    fn power(&self) -> Power {
        let process = NSProcessInfo::processInfo();
        let thermal = match process.thermalState() {
            NSProcessInfoThermalState::Nominal => Thermal::Nominal,
            NSProcessInfoThermalState::Fair => Thermal::Fair,
            NSProcessInfoThermalState::Serious => Thermal::Serious,
            _ => Thermal::Critical,
        };
        Power { is_low: process.isLowPowerModeEnabled(), thermal }
    }

    fn buffer(
        &self,
        label: &str,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<AppleBuffer, GpuError> {
        let options = MTLResourceOptions::StorageModeShared;
        let buffer = self.0.device.newBufferWithLength_options(bytes, options);
        let refused = || GpuError::new(Fault::Memory, format!("no buffer of {bytes} bytes"));
        AppleBuffer::new(buffer.ok_or_else(refused)?, label, self.resident(), fill)
    }

    fn map(&self, label: &str, pages: &Mapped) -> Result<AppleBuffer, GpuError> {
        AppleBuffer::over(&self.0.device, label, self.resident(), pages)
    }

    fn keep_resident(&self, buffers: &[AppleBuffer]) {
        if let Some(resident) = self.resident() {
            // Everything is in the set; now is the time to read it. Where that is refused it is read when it is used.
            let _ = caught(|| {
                resident.set().requestResidency();
                Ok(())
            });
            return;
        }
        autoreleasepool(|_| {
            // Since macOS 15.
            let device = &self.0.device;
            if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
                return;
            }
            let Ok(set) = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            else {
                return;
            };
            for buffer in buffers {
                let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(buffer.metal());
                set.addAllocation(allocation);
            }
            set.commit();
            set.requestResidency();
            self.0.queue.addResidencySet(&set);
        });
    }

    fn library(&self, source: &str, language: Language) -> Result<AppleLibrary, GpuError> {
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(match language {
                Language::V3_1 => MTLLanguageVersion::Version3_1,
                Language::V3_2 => MTLLanguageVersion::Version3_2,
                Language::V4_0 => MTLLanguageVersion::Version4_0,
            });
            if options.respondsToSelector(sel!(setMathMode:)) {
                options.setMathMode(MTLMathMode::Safe);
                // By itself that leaves functions without `precise::` the fast ones.
                options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
            } else {
                // macOS 14 has only this one.
                #[allow(deprecated)]
                options.setFastMathEnabled(false);
            }
            let source = NSString::from_str(source);
            let made = self.0.device.newLibraryWithSource_options_error(&source, Some(&options));
            made.map(AppleLibrary).map_err(|error| compiler(&error))
        })
    }

    fn precompiled(&self, library: &'static [u8]) -> Result<AppleLibrary, GpuError> {
        autoreleasepool(|_| {
            let made = self.0.device.newLibraryWithData_error(&DispatchData::from_static_bytes(library));
            made.map(AppleLibrary).map_err(|error| compiler(&error))
        })
    }

    fn pipeline(
        &self,
        library: &AppleLibrary,
        name: &str,
        constants: &[Constant],
        threads: usize,
    ) -> Result<(ApplePipeline, Limits), GpuError> {
        autoreleasepool(|_| {
            let values = MTLFunctionConstantValues::new();
            for (index, kind, word) in constants {
                let flag = u8::from(*word != 0);
                let (kind, value) = match kind {
                    WordKind::U32 => (MTLDataType::UInt, NonNull::from(word).cast()),
                    WordKind::I32 => (MTLDataType::Int, NonNull::from(word).cast()),
                    WordKind::F32 => (MTLDataType::Float, NonNull::from(word).cast()),
                    WordKind::Bool => (MTLDataType::Bool, NonNull::from(&flag).cast()),
                };
                // SAFETY: the value lives here, is as long as its type says, and is copied.
                unsafe { values.setConstantValue_type_atIndex(value, kind, *index) };
            }
            let name = NSString::from_str(name);
            let function = library.0.newFunctionWithName_constantValues_error(&name, &values);
            let function = function.map_err(|error| compiler(&error))?;
            let descriptor = MTLComputePipelineDescriptor::new();
            descriptor.setComputeFunction(Some(&function));
            // The compiler divides registers among so many threads, and no fewer are allowed then.
            descriptor.setMaxTotalThreadsPerThreadgroup(threads);
            let made = archive::make(&self.0.device, self.0.archive.as_deref(), &descriptor);
            let pipeline = made.map_err(|error| compiler(&error))?;
            let limits = Limits {
                threads: pipeline.maxTotalThreadsPerThreadgroup(),
                fixed_memory: pipeline.staticThreadgroupMemoryLength(),
                simdgroup: pipeline.threadExecutionWidth(),
            };
            Ok((ApplePipeline(pipeline), limits))
        })
    }

    fn keep_pipelines(&self) {
        if let Some(archive) = &self.0.archive {
            autoreleasepool(|_| archive.keep());
        }
    }

    fn begin(&self, label: &str) -> Result<AppleCommands, GpuError> {
        Ok(AppleCommands(match &self.0.metal4 {
            Some(queue) => Form::Metal4(caught(|| Metal4::begin(queue, label))?),
            None => Form::Classic(Classic::begin(&self.0.queue, label)?),
        }))
    }
}
