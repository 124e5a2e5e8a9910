//! Command buffers: concurrent compute encoders, and blit encoders between them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::channel;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder,
    MTLCommandQueue, MTLComputeCommandEncoder, MTLDispatchType, MTLSize,
};

use super::commands::{AppleSubmitted, Outcome};
use super::{AppleBuffer, ApplePipeline, words};
use crate::faults;
use crate::gpu::{Commands, Fault, GpuError, Span};

type Buffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;

/// What is being encoded.
enum Encoder {
    None,
    Compute(Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>),
    Blit(Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>),
}

/// Commands of a classic queue that are being written down.
pub(super) struct Classic {
    buffer: Buffer,
    encoder: Encoder,
}

// SAFETY: a command buffer and its encoders may be used on any thread, by one at a time: they are owned by this value alone.
unsafe impl Send for Classic {}

impl Classic {
    pub(super) fn begin(queue: &ProtocolObject<dyn MTLCommandQueue>, label: &str) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let buffer = queue.commandBuffer();
            let buffer = buffer.ok_or_else(|| GpuError::new(Fault::Lost, "Metal gave no command buffer"))?;
            buffer.setLabel(Some(&NSString::from_str(label)));
            Ok(Classic { buffer, encoder: Encoder::None })
        })
    }

    fn end(&mut self) {
        match std::mem::replace(&mut self.encoder, Encoder::None) {
            Encoder::None => {}
            Encoder::Compute(encoder) => encoder.endEncoding(),
            Encoder::Blit(encoder) => encoder.endEncoding(),
        }
    }

    /// The compute encoder, if Metal gives one.
    fn compute(&mut self) -> Option<&ProtocolObject<dyn MTLComputeCommandEncoder>> {
        if !matches!(self.encoder, Encoder::Compute(_)) {
            self.end();
            let made = autoreleasepool(|_| {
                self.buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)
            });
            self.encoder = Encoder::Compute(made?);
        }
        match &self.encoder {
            Encoder::Compute(encoder) => Some(encoder),
            _ => None,
        }
    }

    fn blit(&mut self) -> Option<&ProtocolObject<dyn MTLBlitCommandEncoder>> {
        if !matches!(self.encoder, Encoder::Blit(_)) {
            self.end();
            self.encoder = Encoder::Blit(autoreleasepool(|_| self.buffer.blitCommandEncoder())?);
        }
        match &self.encoder {
            Encoder::Blit(encoder) => Some(encoder),
            _ => None,
        }
    }
}

impl Drop for Classic {
    fn drop(&mut self) {
        // Metal stops the program where an encoder goes that was not ended.
        self.end();
    }
}

fn size([width, height, depth]: [usize; 3]) -> MTLSize {
    MTLSize { width, height, depth }
}

impl Commands for Classic {
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;
    type Submitted = AppleSubmitted;

    fn pipeline(&mut self, pipeline: &ApplePipeline) {
        if let Some(encoder) = self.compute() {
            encoder.setComputePipelineState(&pipeline.0);
        }
    }

    fn buffer(&mut self, index: usize, buffer: &AppleBuffer, offset: usize) {
        if let Some(encoder) = self.compute() {
            // SAFETY: the offset is inside of the buffer, which the command buffer retains; that the kernel stays inside of its operand
            // is the plan's promise, held by its tests.
            unsafe { encoder.setBuffer_offset_atIndex(Some(buffer.metal()), offset, index) };
        }
    }

    fn words(&mut self, index: usize, words: &[u32]) {
        if let (Some(encoder), Some(first)) = (self.compute(), words.first()) {
            // SAFETY: so many bytes from there on, which are copied.
            unsafe { encoder.setBytes_length_atIndex(NonNull::from(first).cast(), 4 * words.len(), index) };
        }
    }

    fn threadgroup_memory(&mut self, index: usize, bytes: usize) {
        if let Some(encoder) = self.compute() {
            // SAFETY: the kernel has a parameter of this number (its text), and the sum was checked against the GPU's limit.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(bytes, index) };
        }
    }

    fn dispatch(&mut self, groups: [usize; 3], threads: [usize; 3]) {
        if let Some(encoder) = self.compute() {
            encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
        }
    }

    fn barrier(&mut self) {
        if let Encoder::Compute(encoder) = &self.encoder {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    fn fill(&mut self, buffer: &AppleBuffer, range: Range<usize>, byte: u8) {
        if let Some(encoder) = self.blit() {
            let range = NSRange { location: range.start, length: range.len() };
            encoder.fillBuffer_range_value(buffer.metal(), range, byte);
        }
    }

    fn copy(&mut self, from: &AppleBuffer, range: Range<usize>, to: &AppleBuffer, at: usize) {
        if let Some(encoder) = self.blit() {
            let (start, len) = (range.start, range.len());
            // SAFETY: places of pools and whole buffers, which their owners keep inside of the buffers.
            unsafe {
                encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                    from.metal(),
                    start,
                    to.metal(),
                    at,
                    len,
                );
            }
        }
    }

    fn submit(mut self) -> AppleSubmitted {
        self.end();
        let (told, done) = channel();
        let handler = RcBlock::new(move |buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            // SAFETY: Metal's own, alive during the call.
            let _ = told.send(outcome(unsafe { buffer.as_ref() }));
        });
        // SAFETY: Metal copies the block; what it holds may be used on the thread that it is called on.
        unsafe { self.buffer.addCompletedHandler(RcBlock::as_ptr(&handler)) };
        self.buffer.commit();
        AppleSubmitted::new(done)
    }
}

fn outcome(buffer: &ProtocolObject<dyn MTLCommandBuffer>) -> Outcome {
    let Some(error) = buffer.error() else {
        return match buffer.status() {
            MTLCommandBufferStatus::Error => {
                Err(GpuError::new(Fault::Commands, "Metal says no more than that it failed"))
            }
            _ => Ok(Span { start: buffer.GPUStartTime(), end: buffer.GPUEndTime() }),
        };
    };
    Err(faults::of_commands(&error.domain().to_string(), error.code(), &words(&error)))
}
