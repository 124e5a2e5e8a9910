//! Commands of paper, run by the emulator.

use std::sync::{Arc, Mutex};

use lily_emu::EmuKernels;
use lily_kernels::random::Random;
use lily_kernels::{Dispatch, bindings};
use lily_metal::fake::{Executor, FakeBuffer, Recorded, Submission};

/// Shuffles launches between barriers, the same way each time.
const SEED: u64 = 7;

/// Runs submissions, the launches between two barriers in any order. Of a kernel of this name, what it wrote is spoiled.
pub(crate) fn executor(broken: Option<String>) -> Executor {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let state = Mutex::new((EmuKernels::new(threads).unwrap(), Random::new(SEED)));
    Arc::new(move |submission: &Submission| {
        let (emulator, random) = &mut *state.lock().unwrap();
        let mut together: Vec<&Recorded> = Vec::new();
        for command in &submission.commands {
            if matches!(command, Recorded::Dispatch { .. }) {
                together.push(command);
                continue;
            }
            run_all(emulator, random, broken.as_deref(), &mut together);
            move_bytes(command);
        }
        run_all(emulator, random, broken.as_deref(), &mut together);
    })
}

fn run_all(emulator: &EmuKernels, random: &mut Random, broken: Option<&str>, together: &mut Vec<&Recorded>) {
    (1..together.len()).for_each(|i| together.swap(i, random.below(i + 1)));
    for command in together.drain(..) {
        dispatch(emulator, command);
        if let Recorded::Dispatch { pipeline, buffers, .. } = command
            && broken == Some(&pipeline.name)
        {
            spoil(&pipeline.name, buffers);
        }
    }
}

/// Changes a byte or two at the start of what a kernel writes.
fn spoil(kernel: &str, buffers: &[(usize, FakeBuffer, usize)]) {
    let text = bindings::TEXTS.iter().copied().find(|text| text.name == kernel).unwrap();
    let written = text.parameters.iter().filter(|p| p.attribute == "buffer" && !p.kind.contains("const"));
    for parameter in written {
        for (_, buffer, offset) in buffers.iter().filter(|(number, ..)| *number == parameter.index) {
            buffer.with_bytes(|bytes| bytes[*offset..].iter_mut().take(2).for_each(|byte| *byte ^= 0x31));
        }
    }
}

fn dispatch(emulator: &EmuKernels, command: &Recorded) {
    let Recorded::Dispatch { pipeline, buffers, words, memory, groups, threads } = command else { return };
    let text = bindings::TEXTS.iter().copied().find(|text| text.name == pipeline.name).unwrap();
    let params = words.first().map(|(_, words)| words.clone()).unwrap_or_default();
    let mut dispatch = Dispatch::new(text, pipeline.constants.clone(), params, *groups, *threads);
    dispatch.threadgroup_bytes = memory.iter().map(|(_, bytes)| *bytes).collect();
    let mut addresses = vec![std::ptr::null_mut::<u8>(); text.buffers()];
    for (number, buffer, offset) in buffers {
        addresses[*number] = buffer.address(*offset);
    }
    if let Some((number, _)) = words.first() {
        addresses[*number] = std::ptr::dangling_mut();
    }
    assert!(addresses.iter().all(|address| !address.is_null()), "{}: a buffer is not bound", text.name);
    // SAFETY: bound to bytes of buffers that live in the command; that these are enough is the plan's promise. Nothing else runs: the
    // host waits for submissions, one after the other.
    unsafe { emulator.run(&dispatch, pipeline.activation, addresses) }.unwrap();
}

fn move_bytes(command: &Recorded) {
    match command {
        Recorded::Fill { buffer, range, byte } => {
            buffer.with_bytes(|bytes| bytes[range.clone()].fill(*byte));
        }
        Recorded::Copy { from, range, to, at } => {
            let moved = from.with_bytes(|bytes| bytes[range.clone()].to_vec());
            to.with_bytes(|bytes| bytes[*at..*at + moved.len()].copy_from_slice(&moved));
        }
        Recorded::Barrier | Recorded::Dispatch { .. } => {}
    }
}
