//! Submissions that fail: whose states are lost, and that everybody else goes on.

use lily_model::{DeviceError, Forward, LogitRows};

use super::*;
use crate::gpu::{Fault, GpuError};

fn failed<T>(result: Result<T, DeviceError>) -> String {
    match result {
        Err(DeviceError::Failed(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it did not fail"),
    }
}

/// A chunk of a prompt is not waited for: that it failed is found by somebody else, who must not pay for it.
#[test]
fn a_failed_chunk_ends_its_own_sequence_alone() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut runner = runner(&gpu, &model);
    // Room for all below, since growing waits for what runs.
    let many: Vec<_> = (0..4).map(|_| runner.open().unwrap()).collect();
    many.iter().for_each(|id| runner.prefill(*id, &[1; 64], LogitRows::None).unwrap());
    many.into_iter().for_each(|id| runner.close(id));
    let (one, other) = (runner.open().unwrap(), runner.open().unwrap());
    runner.prefill(other, &[1; 20], LogitRows::Last).unwrap();
    let next = gpu.submissions();
    let page_fault = GpuError::new(Fault::Commands, "kIOGPUCommandBufferCallbackErrorPageFault");
    gpu.fail(|faults| faults.submissions = vec![(next, page_fault)]);
    runner.prefill(one, &[1; 20], LogitRows::None).unwrap();
    // Taken while nobody knows yet.
    let kept = runner.snapshot(one).unwrap();
    let heir = runner.restore(kept).unwrap();
    runner.decode(&[(other, 5)]).unwrap();

    let text = failed(runner.decode(&[(one, 5)]));
    assert!(text.contains("PageFault") && text.contains("prefill"), "{text}");
    failed(runner.decode(&[(other, 5), (one, 5)]));
    failed(runner.snapshot(one));
    failed(runner.restore(kept));
    failed(runner.decode(&[(heir, 5)]));
    runner.close(one);
    runner.close(heir);
    runner.discard(kept);

    let fresh = runner.open().unwrap();
    runner.prefill(fresh, &[1; 20], LogitRows::Last).unwrap();
    runner.decode(&[(fresh, 5), (other, 5)]).unwrap();
    assert_eq!(gpu.wrongs(), [""; 0]);
}

#[test]
fn a_step_that_took_too_long_is_said_so_and_the_next_request_runs() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut runner = runner(&gpu, &model);
    let one = runner.open().unwrap();
    let next = gpu.submissions();
    let timeout = GpuError::new(Fault::Timeout, "Caused GPU Timeout Error (2)");
    gpu.fail(|faults| faults.submissions = vec![(next, timeout)]);
    let text = failed(runner.prefill(one, &[1; 20], LogitRows::Last));
    assert!(text.contains("took too long") && text.contains("Timeout Error"), "{text}");
    runner.close(one);
    let two = runner.open().unwrap();
    runner.prefill(two, &[1; 20], LogitRows::Last).unwrap();
}

/// A GPU that is gone, or does not end what it was given: nothing is promised from then on, and nothing hangs.
#[test]
fn a_lost_gpu_fails_everything_with_the_first_error() {
    for stuck in [false, true] {
        let (gpu, model) = (FakeGpu::new(), tiny());
        let mut runner = runner(&gpu, &model);
        let one = runner.open().unwrap();
        let next = gpu.submissions();
        let removed = GpuError::new(Fault::Lost, "Device removed (11)");
        gpu.fail(|faults| match stuck {
            true => faults.stuck = vec![next],
            false => faults.submissions = vec![(next, removed)],
        });
        let text = failed(runner.prefill(one, &[1; 20], LogitRows::Last));
        let why = if stuck { "not done after 60 seconds" } else { "Device removed" };
        assert!(text.contains(why), "{text}");
        for _ in 0..2 {
            let text = failed(runner.open().and_then(|id| runner.prefill(id, &[1], LogitRows::Last)));
            assert!(text.contains("start again") && text.contains(why), "{text}");
        }
    }
}
