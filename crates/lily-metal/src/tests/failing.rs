//! Submissions that fail: whose states are lost, and that everybody else goes on.

use lily_model::{DeviceError, Forward, LogitRows};

use super::*;
use crate::gpu::{Fault, Gpu as _, GpuError};

fn failed<T>(result: Result<T, DeviceError>) -> String {
    match result {
        Err(DeviceError::Failed(text) | DeviceError::Lost(text)) => text,
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
            let refused = runner.open().and_then(|id| runner.prefill(id, &[1], LogitRows::Last));
            let Err(DeviceError::Lost(text)) = refused else { panic!("{refused:?}") };
            assert!(text.contains(why), "{text}");
        }
        assert!(matches!(runner.decode(&[(one, 5)]), Err(DeviceError::Lost(_))));
    }
}

/// A step that hands its token over, and commands that cannot even be begun.
#[test]
fn a_gpu_that_is_lost_between_steps_is_lost_for_all() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut runner = runner(&gpu, &model);
    let (one, other) = (runner.open().unwrap(), runner.open().unwrap());
    for id in [one, other] {
        runner.prefill(id, &[1; 20], LogitRows::Last).unwrap();
    }
    let next = gpu.submissions();
    let revoked = GpuError::new(Fault::Lost, "Ignored (for causing prior/excessive GPU errors)");
    gpu.fail(|faults| faults.submissions = vec![(next, revoked)]);
    let lost = runner.decode(&[(one, 5)]);
    let Err(DeviceError::Lost(text)) = lost else { panic!("{lost:?}") };
    assert!(text.contains("decode") && text.contains("excessive GPU errors"), "{text}");
    assert!(matches!(runner.decode(&[(other, 5)]), Err(DeviceError::Lost(_))));
    assert!(matches!(runner.snapshot(other), Err(DeviceError::Lost(_))));

    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut runner = super::runner(&gpu, &model);
    let one = runner.open().unwrap();
    runner.prefill(one, &[1; 20], LogitRows::Last).unwrap();
    gpu.fail(|faults| faults.begins = Some(GpuError::new(Fault::Lost, "no command buffer of paper")));
    let lost = runner.decode(&[(one, 5)]);
    let Err(DeviceError::Lost(text)) = lost else { panic!("{lost:?}") };
    assert!(text.contains("no command buffer of paper"), "{text}");
}

/// What the next device is made of: everything anew on the same GPU, while the lost one may still be there with commands that do not end.
#[test]
fn another_device_answers_where_one_was_lost() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut old = runner(&gpu, &model);
    let one = old.open().unwrap();
    let next = gpu.submissions();
    gpu.fail(|faults| faults.stuck = vec![next]);
    assert!(matches!(old.prefill(one, &[1; 20], LogitRows::Last), Err(DeviceError::Lost(_))));
    let (made, held) = (gpu.compiled(), gpu.allocated());
    drop(old);
    assert!(gpu.allocated() < held);
    let mut new = runner(&gpu, &model);
    let one = new.open().unwrap();
    new.prefill(one, &[1; 20], LogitRows::Last).unwrap();
    new.decode(&[(one, 5)]).unwrap();
    assert!(gpu.compiled().1 > made.1, "pipelines are made again");
    assert_eq!(gpu.wrongs(), [""; 0]);
}
