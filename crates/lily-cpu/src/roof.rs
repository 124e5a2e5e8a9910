//! What memory and arithmetic give at most, measured with the device's own threads: the roof over every kernel's speed.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lily_model::DeviceError;

use crate::CpuOptions;
use crate::loops::peak::{Made, Streams};
use crate::pool::Pool;
use crate::simd::Loops;

/// Values of a task of the read test: 1 MiB, long enough to cost nothing beside its reading, short enough that threads end
/// together.
const TASK_VALUES: usize = 1 << 18;

/// Times that the memory is read, and that the arithmetic is tried; the best counts. A pass takes some hundredths of a
/// second, and other programs come in between.
const PASSES: usize = 20;

/// Rounds of multiply-adds in a task: about a millisecond.
const TASK_ROUNDS: usize = 100_000;

/// Tasks of multiply-adds for each thread.
const TASKS_PER_THREAD: usize = 8;

/// The best that this machine gave to the threads of a CPU device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes that they read from memory in a second.
    pub bytes_per_second: f64,
    /// Operations of float32 that they make in a second, a multiply-add counted as two.
    pub flops_per_second: f64,
}

impl Roof {
    /// Bytes whose reading says something of memory: more than caches hold, 64 MiB for each thread (processors have up to
    /// 14 MiB a core) and at least 512 MiB.
    pub fn read_bytes(threads: usize) -> usize {
        threads.max(8) * (64 << 20)
    }

    /// Measures with the threads and instruction set of a device that is made with these options, pinned as they would be:
    /// `bytes` of memory (taken for the while) are read from start to end again and again, and multiply-adds are made in
    /// registers; each time the best of several passes counts. Must be called on a thread that is not pinned.
    pub fn measure(options: &CpuOptions, bytes: usize) -> Result<Roof, DeviceError> {
        let (_, loops) = options.loops()?;
        let (mut pool, pin) = options.pool();
        // On a thread of its own, which may be pinned like the one that runs a device.
        std::thread::scope(|scope| {
            let measuring =
                std::thread::Builder::new().name("lily-roof".into()).spawn_scoped(scope, move || {
                    if pin {
                        Pool::pin_caller();
                    }
                    let flops_per_second = arithmetic(&mut pool, loops)?;
                    Ok(Roof { bytes_per_second: reading(&mut pool, loops, bytes)?, flops_per_second })
                });
            let measuring =
                measuring.map_err(|e| DeviceError::Failed(format!("no thread to measure on: {e}")))?;
            measuring.join().unwrap_or_else(|_| Err(DeviceError::Failed("the measurement panicked".into())))
        })
    }

    /// The better of both.
    #[must_use]
    pub fn or(self, other: Roof) -> Roof {
        Roof {
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
            flops_per_second: self.flops_per_second.max(other.flops_per_second),
        }
    }
}

/// Bytes a second: the best pass, in one stream or in four.
fn reading(pool: &mut Pool, loops: Loops, bytes: usize) -> Result<f64, DeviceError> {
    let mut values = vec![0f32; (bytes / 4).max(1)];
    prefer_huge_pages(&mut values);
    let parts: Vec<_> = values.chunks_mut(TASK_VALUES).map(Mutex::new).collect();
    // Written first, by these threads: memory that nobody wrote is one page of zeros in the cache.
    run(pool, parts.len(), &|task| parts[task].lock().unwrap_or_else(PoisonError::into_inner).fill(1.0))?;
    drop(parts);
    let parts: Vec<&[f32]> = values.chunks(TASK_VALUES).collect();
    let mut streams = Streams::One;
    best(4 * values.len(), || {
        streams = if streams == Streams::One { Streams::Four } else { Streams::One };
        let read = AtomicU64::new(0);
        run(pool, parts.len(), &|task| {
            let mut sum = 0.0;
            // SAFETY: `Loops::new` has found the instruction set on this processor.
            unsafe { (loops.read_through)(parts[task], streams, &mut sum) };
            // A whole number below 2^24, so it is exact.
            read.fetch_add(sum as u64, Ordering::Relaxed);
        })?;
        match read.into_inner() {
            sum if sum == values.len() as u64 => Ok(()),
            sum => Err(DeviceError::Failed(format!("{} values of 1 were read as {sum}", values.len()))),
        }
    })
}

/// Asks for huge pages, for memory that nobody has touched yet: with small ones the search for their places bounds the
/// reading, by up to a factor of two in a virtual machine (17 to 30 GB/s, two cores of a Zen 4 server, 2026-11-30).
#[cfg(target_os = "linux")]
fn prefer_huge_pages(values: &mut [f32]) {
    const HUGE: usize = 2 << 20;
    let start = values.as_mut_ptr().cast::<u8>();
    let skipped = start.align_offset(HUGE);
    if let Some(len) = size_of_val(values).checked_sub(skipped) {
        // SAFETY: the range lies within `values`, and advice does not change what memory holds. Whether it is taken does not
        // matter.
        unsafe { libc::madvise(start.add(skipped).cast(), len, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_values: &mut [f32]) {}

/// Operations a second: the best pass.
fn arithmetic(pool: &mut Pool, loops: Loops) -> Result<f64, DeviceError> {
    let tasks = TASKS_PER_THREAD * pool.threads();
    let count = AtomicU64::new(0);
    let mut pass = || {
        run(pool, tasks, &|_| {
            let mut made = Made::default();
            // SAFETY: `Loops::new` has found the instruction set on this processor.
            unsafe { (loops.multiply_adds)(TASK_ROUNDS, black_box(0.5), &mut made) };
            black_box(made.sum);
            count.store(made.count, Ordering::Relaxed);
        })
    };
    pass()?;
    let operations = 2 * tasks * count.load(Ordering::Relaxed) as usize;
    best(operations, pass)
}

/// `amount` a second in the fastest of several passes.
fn best(amount: usize, mut pass: impl FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
    let mut best = 0f64;
    for _ in 0..PASSES {
        let start = Instant::now();
        pass()?;
        best = best.max(amount as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(best)
}

fn run(pool: &mut Pool, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<(), DeviceError> {
    match pool.run(tasks, &|i, _| task(i)) {
        true => Ok(()),
        false => Err(DeviceError::Failed("a task of the measurement panicked".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn every_instruction_set_reads_each_value_once_and_counts_its_operations() {
        for isa in Isa::available() {
            let loops = Loops::new(isa).unwrap();
            for len in [0u16, 1, 31, 127, 128, 1000] {
                let values: Vec<f32> = (0..len).map(f32::from).collect();
                for streams in [Streams::One, Streams::Four] {
                    let mut sum = 0.0;
                    // SAFETY: the processor has the instruction set.
                    unsafe { (loops.read_through)(&values, streams, &mut sum) };
                    assert_eq!(sum, values.iter().sum::<f32>(), "{isa:?}, {streams:?}, {len}");
                }
            }
            let mut made = Made::default();
            // SAFETY: the processor has the instruction set.
            unsafe { (loops.multiply_adds)(50, 0.5, &mut made) };
            // Each chain tends to 2, so the sum is twice the values, of which each was made 50 times.
            assert!((f64::from(made.sum) * 25.0 - made.count as f64).abs() < 1.0, "{isa:?}: {made:?}");
        }
    }

    #[test]
    fn a_machine_has_a_roof() {
        let options = CpuOptions {
            threads: Some(2),
            pin: true,
            isa: None,
            precision: crate::Precision::Exact,
            state_bytes: 0,
        };
        let roof = Roof::measure(&options, 3 << 20).unwrap();
        // A thousandth of what any processor of this century does.
        assert!(roof.bytes_per_second > 1e6 && roof.flops_per_second > 1e6, "{roof:?}");
        let faster = Roof { bytes_per_second: f64::INFINITY, flops_per_second: 1.0 };
        assert_eq!(roof.or(faster), Roof { bytes_per_second: f64::INFINITY, ..roof });
        assert_eq!((Roof::read_bytes(1), Roof::read_bytes(16)), (512 << 20, 1 << 30));
    }
}
