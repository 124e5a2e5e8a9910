//! A run of launches as one: captured once, then replayed without the host's part of each launch.

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;
use lily_model::DeviceError;

use crate::driver::{Context, CudaError, cuda};

/// A captured run.
pub(crate) struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: the driver's API takes its handles on any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures what `enqueue` enqueues on the context's stream; none of it runs yet.
    pub(crate) fn capture(
        context: &Arc<Context>,
        enqueue: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream lives.
        unsafe { cuda!(cuStreamBeginCapture_v2(context.stream(), mode)) }?;
        let enqueued = enqueue();
        // SAFETY: ends what was begun above, and writes the graph, or null where a launch has broken the capture.
        let ended = unsafe { cuda!(cuStreamEndCapture(context.stream(), &raw mut graph)) };
        let made = enqueued.and_then(|()| Ok(ended?)).and_then(|()| {
            // SAFETY: writes the handle; the graph was captured.
            Ok(unsafe { cuda!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)) }?)
        });
        if !graph.is_null() {
            // SAFETY: what is executed is a copy of it.
            let _ = unsafe { cuda!(cuGraphDestroy(graph)) };
        }
        made.map(|()| Graph { context: context.clone(), executable })
    }

    /// Enqueues all of it.
    pub(crate) fn launch(&self) -> Result<(), CudaError> {
        // SAFETY: the handle lives; what its launches touch is their makers' promise (`Prepared`).
        unsafe { cuda!(cuGraphLaunch(self.executable, self.context.stream())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `capture`; a graph that runs is freed behind its run.
            let _ = unsafe { cuda!(cuGraphExecDestroy(self.executable)) };
        }
    }
}
