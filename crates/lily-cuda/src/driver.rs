//! The driver's API: errors with names, and the context that everything lives in.

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_model::DeviceError;

/// What a call of CUDA answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {name} ({text})")]
pub(crate) struct CudaError {
    /// `cuLaunchKernel`.
    pub(crate) call: &'static str,
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub(crate) name: String,
    /// CUDA's sentence.
    pub(crate) text: String,
    pub(crate) is_out_of_memory: bool,
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        DeviceError::Failed(error.to_string())
    }
}

/// `Ok` or the error by its name.
pub(crate) fn check(call: &'static str, result: sys::CUresult) -> Result<(), CudaError> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let words = |of: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: both functions write a pointer to a constant string, or null for codes that the driver does not know.
        unsafe {
            of(result, &raw mut text);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        }
    };
    Err(CudaError {
        call,
        name: words(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32)),
        text: words(sys::cuGetErrorString).unwrap_or_else(|| "unknown to this driver".to_owned()),
        is_out_of_memory: result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    })
}

/// Calls a function of the driver; what it answers but success is a [`CudaError`].
macro_rules! cuda {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::check(stringify!($function), cudarc::driver::sys::$function($($argument),*))
    };
}
pub(crate) use cuda;

/// The primary context of a device, and the stream on which everything runs.
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: the driver's API takes its handles on any thread.
unsafe impl Send for Context {}
// SAFETY: as for Send; what is enqueued from several threads at once stands in some order.
unsafe impl Sync for Context {}

impl Context {
    /// Opens device `ordinal`, which exists; makes the context the calling thread's.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        let mut made = Context { device: 0, context: null_mut(), stream: null_mut() };
        // SAFETY: each call writes the handle that it is given the address of, and the context is current when the stream is made.
        unsafe {
            cuda!(cuDeviceGet(&raw mut made.device, i32::try_from(ordinal).unwrap_or(i32::MAX)))?;
            cuda!(cuDevicePrimaryCtxRetain(&raw mut made.context, made.device))?;
            made.enter()?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            cuda!(cuStreamCreate(&raw mut made.stream, flags))?;
        }
        Ok(Arc::new(made))
    }

    /// Makes the context the calling thread's. Everything below relies on it.
    pub(crate) fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { cuda!(cuCtxSetCurrent(self.context)) }
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Waits for everything that was enqueued.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { cuda!(cuStreamSynchronize(self.stream)) }
    }

    /// Free and total memory of the device.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { cuda!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nobody is there to hear of failures, and a context that was lost fails at each of these.
        // SAFETY: made by `open`, and everything that was made in the context holds an `Arc` of it.
        unsafe {
            if !self.stream.is_null() && self.enter().is_ok() {
                let _ = cuda!(cuStreamDestroy_v2(self.stream));
            }
            if !self.context.is_null() {
                let _ = cuda!(cuDevicePrimaryCtxRelease_v2(self.device));
            }
        }
    }
}

/// A point in a stream; with [`Event::timed`] one whose time is known.
pub(crate) struct Event(sys::CUevent);

// SAFETY: the driver's API takes its handles on any thread.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new() -> Result<Self, CudaError> {
        Self::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    pub(crate) fn timed() -> Result<Self, CudaError> {
        Self::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create(flags: sys::CUevent_flags) -> Result<Self, CudaError> {
        let mut event = null_mut();
        // SAFETY: writes the handle; the context is current.
        unsafe { cuda!(cuEventCreate(&raw mut event, flags as u32)) }?;
        Ok(Event(event))
    }

    /// Seconds from an event that happened to a later one, both of [`Event::timed`]; the GPU counts half microseconds.
    pub(crate) fn seconds_to(&self, later: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles live; writes a number.
        unsafe { cuda!(cuEventElapsedTime(&raw mut milliseconds, self.0, later.0)) }?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// From now on the event is what was enqueued so far.
    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: both handles live.
        unsafe { cuda!(cuEventRecord(self.0, stream)) }
    }

    /// Waits until it has happened; at once where it never was recorded.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: the handle lives.
        unsafe { cuda!(cuEventSynchronize(self.0)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`; its owner has entered the context, or the failure is nobody's.
        let _ = unsafe { cuda!(cuEventDestroy_v2(self.0)) };
    }
}
