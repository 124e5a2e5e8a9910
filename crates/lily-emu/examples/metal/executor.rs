//! Commands of paper, run by the emulator.

use std::sync::{Arc, Mutex};

use lily_emu::EmuKernels;
use lily_kernels::random::Random;
use lily_kernels::{Dispatch, bindings};
use lily_metal::fake::{Executor, Recorded, Submission};

/// Shuffles launches between barriers, the same way each time.
const SEED: u64 = 7;

/// Runs submissions, the launches between two barriers in any order. A kernel of this name spoils what it was given.
pub(crate) fn executor(broken: Option<String>) -> Executor {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let state = Mutex::new((EmuKernels::new(threads).unwrap(), Random::new(SEED)));
    Arc::new(move |submission: &Submission| {
        let (emulator, random) = &mut *state.lock().unwrap();
        let mut together: Vec<&Recorded> = Vec::new();
        for command in &submission.commands {
            if let Recorded::Dispatch { pipeline, buffers, .. } = command {
                if broken.as_ref() == Some(&pipeline.name) {
                    let spoil = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte ^= 0x41);
                    buffers.iter().for_each(|(_, buffer, _)| buffer.with_bytes(spoil));
                }
                together.push(command);
                continue;
            }
            run_all(emulator, random, &mut together);
            move_bytes(command);
        }
        run_all(emulator, random, &mut together);
    })
}

fn run_all(emulator: &EmuKernels, random: &mut Random, together: &mut Vec<&Recorded>) {
    (1..together.len()).for_each(|i| together.swap(i, random.below(i + 1)));
    together.drain(..).for_each(|command| dispatch(emulator, command));
}

fn dispatch(emulator: &EmuKernels, command: &Recorded) {
    let Recorded::Dispatch { pipeline, buffers, words, memory, groups, threads } = command else { return };
    let text = bindings::TEXTS.iter().copied().find(|text| text.name == pipeline.name).unwrap();
    let params = words.first().map(|(_, words)| words.clone()).unwrap_or_default();
    let mut dispatch = Dispatch::new(text, pipeline.constants.clone(), params, *groups, *threads);
    dispatch.threadgroup_bytes = memory.iter().map(|(_, bytes)| *bytes).collect();
    let mut addresses = vec![std::ptr::null_mut::<u8>(); text.buffers()];
    for (number, buffer, offset) in buffers {
        addresses[*number] = buffer.with_bytes(|bytes| bytes[*offset..].as_mut_ptr());
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
