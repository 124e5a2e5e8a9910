//! The Metal device where no Mac is: the checks of `lily_metal::checking` over a GPU of paper (`lily_metal::fake`), whose commands run the
//! kernels' texts in the emulator, as late as a GPU may. `metal [--fixtures FOLDER] [--only WORD] [--json FILE]`; with
//! `LILY_BREAK=KERNEL` in the environment, what that kernel writes is spoiled, to see that it is named.
//! Prints 'N passed, N failed' last.
#![allow(clippy::unwrap_used)] // failures of checks, which are caught
#![allow(unsafe_code)] // the emulator takes addresses

mod executor;

use std::process::ExitCode;

use lily_metal::checking::{self, Set};
use lily_metal::fake::{FakeGpu, Metal4Fault};
use lily_metal::gpu::{Gpu as _, QueueKind};
use lily_model::testing::checks::check;

/// What a GPU of paper complains of.
fn wrongs(set: &Set<FakeGpu>) -> String {
    let wrongs = set.gpu.wrongs();
    assert!(wrongs.is_empty(), "{} wrongs, the first: {}", wrongs.len(), wrongs[0]);
    let most = set.gpu.most_in_flight();
    assert!(most <= lily_metal::MOST_IN_FLIGHT, "{most} submissions on their way");
    format!("{} submissions", set.gpu.submissions())
}

fn main() -> ExitCode {
    let broken = std::env::var("LILY_BREAK").ok();
    let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
    let gpu = gpu.with_executor(executor::executor(broken));
    checking::main(Ok(gpu), || {
        vec![
            check("the probe takes products that are right", |set: &Set<FakeGpu>| {
                assert!(set.dialect.tensors, "the probe refused them");
                set.dialect.language.name().to_owned()
            }),
            check("the probe takes a queue of Metal 4 that works", |set: &Set<FakeGpu>| {
                assert_eq!(set.gpu.queue_kind(), QueueKind::Metal4);
                for fault in [Metal4Fault::Missing, Metal4Fault::Wrong, Metal4Fault::Stuck] {
                    let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
                    let gpu = gpu.with_executor(executor::executor(None));
                    gpu.fail(|faults| faults.metal4 = Some(fault));
                    let (gpu, dialect) = lily_metal::probe(&gpu).unwrap();
                    assert_eq!((gpu.queue_kind(), dialect), (QueueKind::Classic, set.dialect), "{fault:?}");
                }
                "and none that is missing, wrong or stuck".to_owned()
            }),
            check("host and GPU keep apart", wrongs),
        ]
    })
}
