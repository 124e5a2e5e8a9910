//! The driver's API.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::kernels::{Launch, Module};

const OK: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const INVALID_CONTEXT: c_int = 201;
const INVALID_IMAGE: c_int = 200;
const NOT_FOUND: c_int = 500;
const ILLEGAL_ADDRESS: c_int = 700;
const CAPTURE_UNSUPPORTED: c_int = 900;

/// Bytes of the device.
const MEMORY: usize = 4 << 30;
const ALIGN: usize = 256;
/// NaN as any float, and no index of anything.
const POISON: u8 = 0xff;

/// Blocks by address, of the device.
static BLOCKS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());
/// The launches that a capture collects.
static CAPTURE: Mutex<Option<Vec<Launch>>> = Mutex::new(None);
/// The error that has ended the context.
static BROKEN: Mutex<c_int> = Mutex::new(OK);

thread_local! {
    static CURRENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call may do something: a context is the thread's, works, and no capture is in between.
fn ready() -> c_int {
    let broken = *BROKEN.lock().unwrap();
    match () {
        () if !CURRENT.get() => INVALID_CONTEXT,
        () if broken != OK => broken,
        () if CAPTURE.lock().unwrap().is_some() => CAPTURE_UNSUPPORTED,
        () => OK,
    }
}

fn known(address: u64, bytes: usize) -> bool {
    let blocks = BLOCKS.lock().unwrap();
    let below = blocks.range(..=address).next_back();
    below.is_some_and(|(start, size)| address + bytes as u64 <= start + *size as u64)
}

/// An answer of the driver, if the rest may happen.
macro_rules! only {
    ($condition:expr, $error:expr) => {
        if !$condition {
            return $error;
        }
    };
    () => {
        let state = ready();
        if state != OK {
            return state;
        }
    };
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            #[allow(unused_unsafe)]
            unsafe { $body }
        })*
    };
}

type Event = *mut c_void;
type Stream = *mut c_void;

/// `CUlaunchConfig`. Its attributes say when a kernel may start, which one after the other keeps.
#[repr(C)]
pub struct Config {
    grid: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    stream: Stream,
    _attributes: *const c_void,
    _count: c_uint,
}

functions! {
    cuInit(_flags: c_uint) { OK }
    cuDriverGetVersion(version: *mut c_int) { *version = 13_000; OK }
    cuDeviceGetCount(count: *mut c_int) { *count = 1; OK }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) { *device = ordinal; if ordinal == 0 { OK } else { 101 } }
    cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) {
        let text = c"GPU of straw".to_bytes_with_nul();
        only!(text.len() <= length as usize, INVALID_VALUE);
        name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        OK
    }
    cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { *bytes = MEMORY; OK }
    cuDeviceGetAttribute(value: *mut c_int, which: c_int, _device: c_int) {
        *value = match which {
            16 => 1,    // multiprocessors
            75 => 9,    // compute capability
            76 => 0,
            _ => 0,
        };
        OK
    }
    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) { *context = std::ptr::dangling_mut(); OK }
    cuDevicePrimaryCtxRelease_v2(_device: c_int) { OK }
    cuCtxSetCurrent(context: *mut c_void) { CURRENT.set(!context.is_null()); OK }
    cuGetErrorName(error: c_int, text: *mut *const c_char) {
        *text = match error {
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
            ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            _ => c"CUDA_ERROR_OF_STRAW",
        }.as_ptr();
        OK
    }
    cuGetErrorString(_error: c_int, text: *mut *const c_char) { *text = c"refused by the driver of straw".as_ptr(); OK }

    cuStreamCreate(stream: *mut Stream, _flags: c_uint) { only!(); *stream = std::ptr::dangling_mut(); OK }
    cuStreamDestroy_v2(_stream: Stream) { ready() }
    cuStreamSynchronize(_stream: Stream) { ready() }
    cuEventCreate(event: *mut Event, _flags: c_uint) { only!(); *event = std::ptr::dangling_mut(); OK }
    cuEventRecord(_event: Event, _stream: Stream) { ready() }
    cuEventSynchronize(_event: Event) { ready() }
    cuEventDestroy_v2(_event: Event) { ready() }

    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        only!();
        *total = MEMORY;
        *free = MEMORY - BLOCKS.lock().unwrap().values().sum::<usize>();
        OK
    }
    cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        only!();
        only!(bytes > 0, INVALID_VALUE);
        let mut blocks = BLOCKS.lock().unwrap();
        only!(blocks.values().sum::<usize>() + bytes <= MEMORY, OUT_OF_MEMORY);
        let start = alloc(Layout::from_size_align(bytes, ALIGN).unwrap());
        only!(!start.is_null(), OUT_OF_MEMORY);
        start.write_bytes(POISON, bytes);
        blocks.insert(start as u64, bytes);
        *address = start as u64;
        OK
    }
    cuMemFree_v2(address: u64) {
        only!();
        let bytes = BLOCKS.lock().unwrap().remove(&address);
        let Some(bytes) = bytes else { return INVALID_VALUE };
        dealloc(address as *mut u8, Layout::from_size_align(bytes, ALIGN).unwrap());
        OK
    }
    cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        only!();
        // The size stands in front.
        let at = alloc(Layout::from_size_align(bytes + 4096, 4096).unwrap());
        at.cast::<usize>().write(bytes);
        *start = at.add(4096).cast();
        OK
    }
    cuMemFreeHost(start: *mut c_void) {
        only!();
        let at = start.cast::<u8>().sub(4096);
        let bytes = at.cast::<usize>().read();
        dealloc(at, Layout::from_size_align(bytes + 4096, 4096).unwrap());
        OK
    }
    cuMemsetD8Async(at: u64, byte: u8, bytes: usize, _stream: Stream) {
        only!();
        only!(known(at, bytes), INVALID_VALUE);
        (at as *mut u8).write_bytes(byte, bytes);
        OK
    }
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, bytes: usize, _stream: Stream) {
        only!();
        only!(known(to, bytes), INVALID_VALUE);
        (to as *mut u8).copy_from_nonoverlapping(from, bytes);
        OK
    }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, _stream: Stream) {
        only!();
        only!(known(from, bytes), INVALID_VALUE);
        to.copy_from_nonoverlapping(from as *const u8, bytes);
        OK
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Stream) {
        only!();
        only!(known(to, bytes) && known(from, bytes), INVALID_VALUE);
        only!(to.abs_diff(from) >= bytes as u64, INVALID_VALUE);
        (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes);
        OK
    }

    cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) {
        only!();
        let Some(made) = Module::of(image) else { return INVALID_IMAGE };
        *module = Box::into_raw(Box::new(made)).cast();
        OK
    }
    cuModuleUnload(module: *mut c_void) { only!(); drop(Box::from_raw(module.cast::<Module>())); OK }
    cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        only!();
        if let Module::Text(found) = &*module.cast::<Module>() {
            only!(CStr::from_ptr(name).to_bytes() == found.symbol().as_bytes(), NOT_FOUND);
        }
        *function = module;
        OK
    }
    cuFuncGetAttribute(value: *mut c_int, which: c_int, function: *mut c_void) {
        only!();
        // the most threads of a block; everything else is 0
        let Module::Text(function) = &*function.cast::<Module>() else { return INVALID_VALUE };
        *value = if which == 0 { function.threads as c_int } else { 0 };
        OK
    }
    cuFuncSetAttribute(function: *mut c_void, which: c_int, value: c_int) {
        only!();
        let Module::Text(function) = &mut *function.cast::<Module>() else { return INVALID_VALUE };
        if which == 8 {
            function.most_shared = value as usize;
        }
        OK
    }
    cuLaunchKernel(
        function: *mut c_void, x: c_uint, y: c_uint, z: c_uint, tx: c_uint, ty: c_uint, tz: c_uint, shared: c_uint,
        _stream: Stream, arguments: *const *const c_void, _extra: *mut c_void,
    ) {
        only!(CURRENT.get(), INVALID_CONTEXT);
        let Module::Text(function) = &*function.cast::<Module>() else { return ready() };
        let fits = (tx * ty * tz) as usize == function.threads && shared as usize <= function.most_shared;
        only!(fits && x * y * z > 0, INVALID_VALUE);
        let launch = Launch::new(function, [x, y, z], [tx, ty, tz], shared, arguments);
        if let Some(launches) = CAPTURE.lock().unwrap().as_mut() {
            launches.push(launch);
            return OK;
        }
        run(&[launch])
    }

    cuLaunchKernelEx(
        config: *const Config, function: *mut c_void, arguments: *const *const c_void, extra: *mut c_void,
    ) {
        let Config { grid: [x, y, z], threads: [tx, ty, tz], shared, stream, .. } = *config;
        cuLaunchKernel(function, x, y, z, tx, ty, tz, shared, stream, arguments, extra)
    }

    cuStreamBeginCapture_v2(_stream: Stream, _mode: c_int) { only!(); *CAPTURE.lock().unwrap() = Some(Vec::new()); OK }
    cuStreamEndCapture(_stream: Stream, graph: *mut *mut c_void) {
        let Some(launches) = CAPTURE.lock().unwrap().take() else { return INVALID_VALUE };
        *graph = Box::into_raw(Box::new(launches)).cast();
        OK
    }
    cuGraphInstantiateWithFlags(made: *mut *mut c_void, graph: *mut c_void, _flags: u64) {
        only!();
        *made = Box::into_raw(Box::new((*graph.cast::<Vec<Launch>>()).clone())).cast();
        OK
    }
    cuGraphDestroy(graph: *mut c_void) { drop(Box::from_raw(graph.cast::<Vec<Launch>>())); OK }
    cuGraphExecDestroy(graph: *mut c_void) { drop(Box::from_raw(graph.cast::<Vec<Launch>>())); OK }
    cuGraphLaunch(graph: *mut c_void, _stream: Stream) { only!(); run(&*graph.cast::<Vec<Launch>>()) }
}

fn run(launches: &[Launch]) -> c_int {
    let state = ready();
    if state != OK {
        return state;
    }
    for launch in launches {
        // A launch that is not to be answers when it is waited for; here at once, and always from then on.
        if !unsafe { launch.run(|address| known(address, 0)) } {
            *BROKEN.lock().unwrap() = ILLEGAL_ADDRESS;
            return ILLEGAL_ADDRESS;
        }
    }
    OK
}
