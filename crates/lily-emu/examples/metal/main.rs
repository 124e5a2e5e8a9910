//! The Metal device where no Mac is: the checks of `lily_metal::checking` over a GPU of paper (`lily_metal::fake`), whose commands run the
//! kernels' texts in the emulator, as late as a GPU may. `metal [--fixtures FOLDER] [--only WORD] [--queue auto|classic|metal4] [--json FILE]`; with
//! `LILY_BREAK=KERNEL` in the environment, what that kernel writes is spoiled, to see that it is named.
//! Prints 'N passed, N failed' last.
#![allow(clippy::unwrap_used)] // failures of checks, which are caught
#![allow(unsafe_code)] // the emulator takes addresses

mod executor;

use std::process::ExitCode;

use lily_metal::QueueChoice;
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
                let probed = |choice, fault| {
                    let gpu = FakeGpu::new().with_facts(|facts| facts.is_metal4 = true);
                    let gpu = gpu.with_executor(executor::executor(None));
                    gpu.fail(|faults| faults.metal4 = fault);
                    let probed = lily_metal::probe(&gpu, choice).unwrap();
                    assert_eq!(probed.dialect, set.dialect, "{fault:?}");
                    (probed.gpu.queue_kind(), probed.refused.is_some())
                };
                for choice in [QueueChoice::Auto, QueueChoice::Only(QueueKind::Metal4)] {
                    assert_eq!(probed(choice, None), (QueueKind::Metal4, false));
                }
                assert_eq!(probed(QueueChoice::Only(QueueKind::Classic), None), (QueueKind::Classic, false));
                for fault in [
                    Metal4Fault::Missing,
                    Metal4Fault::Wrong,
                    Metal4Fault::Stuck,
                    Metal4Fault::ThrowsWhenMade,
                    Metal4Fault::ThrowsWhenUsed,
                ] {
                    assert_eq!(
                        probed(QueueChoice::Auto, Some(fault)),
                        (QueueKind::Classic, true),
                        "{fault:?}"
                    );
                }
                "and none that is missing, wrong or stuck, or throws".to_owned()
            }),
            check("host and GPU keep apart", wrongs),
        ]
    })
}
