//! Queues of Metal 4: command buffers that know nothing of what they use, so that everything is told them: memory is resident by a set
//! of the queue, is held until the GPU is done, and is waited for by barriers (`untracked::Order`).

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTL4ArgumentTable, MTL4ArgumentTableDescriptor, MTL4CommandAllocator, MTL4CommandBuffer,
    MTL4CommandEncoder, MTL4CommandQueue, MTL4CommitFeedback, MTL4CommitOptions, MTL4ComputeCommandEncoder,
    MTL4VisibilityOptions, MTLBuffer, MTLDevice, MTLResourceOptions, MTLSize, MTLStages,
};

use super::commands::{AppleSubmitted, Outcome};
use super::exception::caught;
use super::memory::Resident;
use super::{AppleBuffer, ApplePipeline, words};
use crate::faults;
use crate::gpu::{Block, Commands, Fault, GpuError, Span};
use crate::untracked::{Order, Places};

/// Buffers that a kernel may have: as many as there are numbers of them.
const BINDINGS: usize = 31;

/// Bytes of a piece of memory for words.
const WORDS: usize = 64 << 10;

/// A queue, and what commands are written with.
pub(super) struct Queue4 {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTL4CommandQueue>>,
    /// What the queue finds in memory: all buffers of the GPU that has this queue.
    pub(super) resident: Arc<Resident>,
    /// Of commands that are done.
    spare: Mutex<Vec<Tools>>,
}

/// What commands are written with, used again when the GPU is done with them.
struct Tools {
    allocator: Retained<ProtocolObject<dyn MTL4CommandAllocator>>,
    commands: Retained<ProtocolObject<dyn MTL4CommandBuffer>>,
    table: Retained<ProtocolObject<dyn MTL4ArgumentTable>>,
    words: Vec<AppleBuffer>,
}

// SAFETY: these may be used on any thread, by one at a time: they are owned by whoever has taken them from the list.
unsafe impl Send for Tools {}

fn missing(what: &str) -> GpuError {
    GpuError::new(Fault::Commands, format!("Metal gave no {what}"))
}

impl Queue4 {
    pub(super) fn new(device: &Retained<ProtocolObject<dyn MTLDevice>>) -> Result<Self, GpuError> {
        let queue = device.newMTL4CommandQueue().ok_or_else(|| missing("queue of Metal 4"))?;
        let resident = Arc::new(Resident::new(device)?);
        queue.addResidencySet(resident.set());
        Ok(Queue4 { device: device.clone(), queue, resident, spare: Mutex::default() })
    }

    fn tools(&self) -> Result<Tools, GpuError> {
        if let Some(tools) = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            tools.allocator.reset();
            return Ok(tools);
        }
        let descriptor = MTL4ArgumentTableDescriptor::new();
        descriptor.setMaxBufferBindCount(BINDINGS);
        let table = self.device.newArgumentTableWithDescriptor_error(&descriptor);
        Ok(Tools {
            allocator: self.device.newCommandAllocator().ok_or_else(|| missing("command allocator"))?,
            commands: self.device.newCommandBuffer().ok_or_else(|| missing("command buffer"))?,
            table: table.map_err(|error| GpuError::new(Fault::Commands, words(&error)))?,
            words: Vec::new(),
        })
    }

    fn done_with(&self, tools: Tools) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(tools);
    }
}

/// Commands of a queue of Metal 4 that are being written down.
pub(super) struct Metal4 {
    queue: Arc<Queue4>,
    /// Until they are submitted.
    tools: Option<Tools>,
    encoder: Retained<ProtocolObject<dyn MTL4ComputeCommandEncoder>>,
    order: Order,
    places: Places,
    /// What the commands use, by address: command buffers of this kind hold nothing.
    used: HashMap<u64, AppleBuffer>,
    failed: Option<GpuError>,
}

// SAFETY: as for `Tools`: the encoder is owned by this value alone.
unsafe impl Send for Metal4 {}

/// Everything that these commands consist of.
fn all() -> MTLStages {
    MTLStages::Dispatch | MTLStages::Blit
}

impl Metal4 {
    pub(super) fn begin(queue: &Arc<Queue4>, label: &str) -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let tools = queue.tools()?;
            tools.commands.beginCommandBufferWithAllocator(&tools.allocator);
            tools.commands.setLabel(Some(&NSString::from_str(label)));
            let Some(encoder) = tools.commands.computeCommandEncoder() else {
                tools.commands.endCommandBuffer();
                return Err(missing("encoder"));
            };
            encoder.setArgumentTable(Some(&tools.table));
            // Behind all that was submitted before, and seeing what it wrote.
            encoder.barrierAfterQueueStages_beforeStages_visibilityOptions(
                all(),
                all(),
                MTL4VisibilityOptions::Device,
            );
            Ok(Metal4 {
                queue: queue.clone(),
                tools: Some(tools),
                encoder,
                order: Order::default(),
                places: Places::default(),
                used: HashMap::new(),
                failed: None,
            })
        })
    }

    /// Tells Metal something, unless that failed before: what is written down after a failure is not submitted.
    pub(super) fn tell(&mut self, told: impl FnOnce(&mut Self)) {
        if self.failed.is_some() {
            return;
        }
        let done = caught(|| {
            told(self);
            Ok(())
        });
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    fn wait_if(&self, waits: bool) {
        if waits {
            self.encoder.barrierAfterEncoderStages_beforeEncoderStages_visibilityOptions(
                all(),
                all(),
                MTL4VisibilityOptions::Device,
            );
        }
    }

    fn hold(&mut self, buffer: &AppleBuffer) -> u64 {
        let address = buffer.metal().gpuAddress();
        self.used.entry(address).or_insert_with(|| buffer.clone());
        address
    }

    /// Memory for words, and the first byte in it.
    fn place(&mut self, bytes: usize) -> Result<(AppleBuffer, usize), GpuError> {
        let too_long = || GpuError::new(Fault::Commands, format!("{bytes} bytes are passed by value"));
        let (chunk, start) = self.places.next(bytes, WORDS).ok_or_else(too_long)?;
        let tools = self.tools.as_mut().ok_or_else(|| missing("memory for words"))?;
        if tools.words.len() <= chunk {
            let options = MTLResourceOptions::StorageModeShared;
            let made = self.queue.device.newBufferWithLength_options(WORDS, options);
            let made = made.ok_or_else(|| GpuError::new(Fault::Memory, "no memory for words"))?;
            tools.words.push(AppleBuffer::new(made, "words", Some(&self.queue.resident), &mut |_| ())?);
        }
        tools
            .words
            .get(chunk)
            .map(|buffer| (buffer.clone(), start))
            .ok_or_else(|| missing("memory for words"))
    }

    fn bind(&mut self, index: usize, address: u64) {
        if index >= BINDINGS {
            self.failed.get_or_insert_with(|| missing(&format!("binding {index}")));
            return;
        }
        if let Some(tools) = &self.tools {
            // SAFETY: inside of the table (checked); what is there is copied at the next dispatch.
            unsafe { tools.table.setAddress_atIndex(address, index) };
        }
    }

    /// Ends what was begun.
    fn end(&mut self) -> Option<Tools> {
        let tools = self.tools.take()?;
        self.encoder.endEncoding();
        tools.commands.endCommandBuffer();
        Some(tools)
    }
}

impl Drop for Metal4 {
    fn drop(&mut self) {
        // Those that are not submitted. Nobody could be told of an exception, and the tools go with it.
        if let Ok(Some(tools)) = caught(|| Ok(self.end())) {
            self.queue.done_with(tools);
        }
    }
}

fn size([width, height, depth]: [usize; 3]) -> MTLSize {
    MTLSize { width, height, depth }
}

impl Commands for Metal4 {
    type Buffer = AppleBuffer;
    type Pipeline = ApplePipeline;
    type Submitted = AppleSubmitted;

    fn pipeline(&mut self, pipeline: &ApplePipeline) {
        self.encoder.setComputePipelineState(&pipeline.0);
    }

    fn buffer(&mut self, index: usize, buffer: &AppleBuffer, offset: usize) {
        let address = self.hold(buffer);
        self.bind(index, address + offset as u64);
    }

    fn words(&mut self, index: usize, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match self.place(bytes.len()) {
            Ok((buffer, start)) => {
                buffer.write(start, &bytes);
                self.bind(index, buffer.metal().gpuAddress() + start as u64);
            }
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    fn threadgroup_memory(&mut self, index: usize, bytes: usize) {
        // SAFETY: the kernel has a parameter of this number (its text), and the sum was checked against the GPU's limit.
        unsafe { self.encoder.setThreadgroupMemoryLength_atIndex(bytes, index) };
    }

    fn dispatch(&mut self, groups: [usize; 3], threads: [usize; 3]) {
        let waits = self.order.dispatch();
        self.wait_if(waits);
        self.encoder.dispatchThreadgroups_threadsPerThreadgroup(size(groups), size(threads));
    }

    fn barrier(&mut self) {
        let waits = self.order.barrier();
        self.wait_if(waits);
    }

    fn fill(&mut self, buffer: &AppleBuffer, range: Range<usize>, byte: u8) {
        self.hold(buffer);
        let waits = self.order.moves();
        self.wait_if(waits);
        let range = NSRange { location: range.start, length: range.len() };
        // SAFETY: places of pools and whole buffers, which their owners keep inside of the buffers.
        unsafe { self.encoder.fillBuffer_range_value(buffer.metal(), range, byte) };
    }

    fn copy(&mut self, from: &AppleBuffer, range: Range<usize>, to: &AppleBuffer, at: usize) {
        self.hold(from);
        self.hold(to);
        let waits = self.order.moves();
        self.wait_if(waits);
        // SAFETY: as in `fill`.
        unsafe {
            self.encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                from.metal(),
                range.start,
                to.metal(),
                at,
                range.len(),
            );
        }
    }

    fn submit(mut self) -> AppleSubmitted {
        let Some(tools) = self.end() else { return AppleSubmitted::failed(missing("commands")) };
        if let Some(error) = self.failed.take() {
            // The tools go: who knows what state they are in.
            return AppleSubmitted::failed(error);
        }
        autoreleasepool(|_| {
            let (told, done) = channel();
            let commands = tools.commands.clone();
            let held = Cell::new(Some((tools, std::mem::take(&mut self.used))));
            let queue = self.queue.clone();
            let handler = RcBlock::new(move |feedback: NonNull<ProtocolObject<dyn MTL4CommitFeedback>>| {
                // SAFETY: Metal's own, alive during the call.
                let outcome = caught(|| outcome(unsafe { feedback.as_ref() }));
                if let Some((tools, used)) = held.take() {
                    queue.done_with(tools);
                    drop(used);
                }
                let _ = told.send(outcome);
            });
            let options = MTL4CommitOptions::new();
            // SAFETY: Metal copies the block and calls it once; what it holds may be used on the thread that it is called on.
            unsafe { options.addFeedbackHandler(RcBlock::as_ptr(&handler)) };
            let mut first = NonNull::from(&*commands);
            // SAFETY: one command buffer, which has ended and is held by the block.
            unsafe { self.queue.queue.commit_count_options(NonNull::from(&mut first), 1, &options) };
            AppleSubmitted::new(done)
        })
    }
}

fn outcome(feedback: &ProtocolObject<dyn MTL4CommitFeedback>) -> Outcome {
    let Some(error) = feedback.error() else {
        return Ok(Span { start: feedback.GPUStartTime(), end: feedback.GPUEndTime() });
    };
    Err(faults::of_commands(&error.domain().to_string(), error.code(), &words(&error)))
}
