//! Launches: from the arguments of a CUDA kernel back to those of its text.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{LazyLock, Mutex};

use lily_emu::EmuKernels;
use lily_kernels::{Activation, Dispatch, Text, TextParameter, bindings};

static EMULATOR: LazyLock<Mutex<EmuKernels>> = LazyLock::new(|| {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Mutex::new(EmuKernels::new(threads).unwrap())
});

/// What a module holds.
pub(crate) enum Module {
    /// A text.
    Text(Function),
    /// Kernels that measure the GPU, and that do nothing here.
    Measurement,
}

impl Module {
    /// Of what the compiler of straw has made.
    pub(crate) unsafe fn of(image: *const c_void) -> Option<Self> {
        let code = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_str().ok()?;
        match code {
            "straw measurement" => Some(Module::Measurement),
            _ => Function::of(code).map(Module::Text),
        }
    }
}

/// A kernel.
#[derive(Clone)]
pub(crate) struct Function {
    text: &'static Text,
    activation: Activation,
    pub(crate) threads: usize,
    constants: Vec<u32>,
    pub(crate) most_shared: usize,
}

impl Function {
    fn of(code: &str) -> Option<Self> {
        let mut words = code.strip_prefix("straw ")?.split(' ');
        let name = words.next()?;
        let activation = words.next()?.to_lowercase();
        let threads = words.next()?.parse().ok()?;
        let constants = words.next()?.split(',').filter(|c| !c.is_empty());
        Some(Function {
            text: bindings::TEXTS.iter().copied().find(|t| t.name == name)?,
            activation: Activation::ALL.into_iter().find(|a| a.name() == activation)?,
            threads,
            constants: constants.map(|c| c.parse().ok()).collect::<Option<_>>()?,
            most_shared: 48 << 10,
        })
    }

    pub(crate) fn symbol(&self) -> String {
        format!("{}__cuda", self.text.name)
    }
}

/// A launch with its arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    function: Function,
    dispatch: Dispatch,
    buffers: Vec<u64>,
}

impl Launch {
    /// Copies the arguments, as the driver does.
    pub(crate) unsafe fn new(
        function: &Function,
        grid: [u32; 3],
        threads: [u32; 3],
        shared: u32,
        arguments: *const *const c_void,
    ) -> Self {
        let text = function.text;
        let of =
            |attribute| text.parameters.iter().filter(move |p: &&TextParameter| p.attribute == attribute);
        let mut next = 0;
        let mut argument = || {
            next += 1;
            unsafe { *arguments.add(next - 1) }
        };
        let (mut buffers, mut params) = (vec![0u64; text.buffers()], Vec::new());
        for p in of("buffer") {
            let at = argument();
            if p.kind.ends_with('&') {
                let words = words(text, p);
                params = (0..words).map(|i| unsafe { at.cast::<u32>().add(i).read_unaligned() }).collect();
                buffers[p.index] = u64::MAX;
            } else {
                buffers[p.index] = unsafe { at.cast::<u64>().read_unaligned() };
            }
        }
        let starts: Vec<usize> =
            of("TG_PARAM").map(|_| unsafe { argument().cast::<u32>().read_unaligned() as usize }).collect();
        let ends = starts.iter().skip(1).copied().chain([shared as usize]);
        let mut dispatch = Dispatch::new(
            text,
            function.constants.clone(),
            params,
            grid.map(|n| n as usize),
            threads.map(|n| n as usize),
        );
        dispatch.threadgroup_bytes = starts.iter().zip(ends).map(|(start, end)| end - start).collect();
        Launch { function: function.clone(), dispatch, buffers }
    }

    /// Runs it; false where a buffer is nothing that was allocated.
    pub(crate) unsafe fn run(&self, known: impl Fn(u64) -> bool) -> bool {
        let by_value = self.function.text.value_buffer();
        if (0..self.buffers.len()).any(|n| Some(n) != by_value && !known(self.buffers[n])) {
            return false;
        }
        let buffers = self.buffers.iter().map(|address| *address as *mut u8).collect();
        let emulator = EMULATOR.lock().unwrap();
        unsafe { emulator.run(&self.dispatch, self.function.activation, buffers) }.is_ok()
    }
}

/// Words of the struct that a parameter passes by value.
fn words(text: &Text, parameter: &TextParameter) -> usize {
    let name = parameter.kind.trim_start_matches("constant").trim_end_matches('&').trim();
    let body = text.source.split(&format!("struct {name} {{")).nth(1).unwrap().split('}').next().unwrap();
    let lines = body.lines().map(|line| line.split("//").next().unwrap_or(""));
    lines.map(|line| line.matches(';').count()).sum()
}
