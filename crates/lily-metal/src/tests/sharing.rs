//! Memory that both sides see: the host keeps away from what submitted commands use.

use lily_model::device::{Device, stage_label};
use lily_model::plan::{self, DecodeShape, Switch};
use lily_model::{Forward, LogitRows};

use super::*;
use crate::MOST_IN_FLIGHT;

#[test]
fn the_host_touches_nothing_that_submissions_use() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let mut runner = runner(&gpu, &model);
    let first = runner.open().unwrap();
    for rows in [70, 30, 64, 1, 5] {
        runner.prefill(first, &vec![3; rows], LogitRows::None).unwrap();
    }
    let kept = runner.snapshot(first).unwrap();
    let second = runner.restore(kept).unwrap();
    runner.prefill(second, &[1; 100], LogitRows::None).unwrap();
    runner.prefill(first, &[2; 3], LogitRows::All).unwrap();
    for _ in 0..5 {
        runner.decode(&[(first, 1), (second, 2)]).unwrap();
        runner.decode(&[(second, 2)]).unwrap();
    }
    let third = runner.open().unwrap();
    runner.make_up(third, 200).unwrap();
    runner.decode(&[(third, 1)]).unwrap();
    runner.discard(kept);
    runner.close(first);
    assert_eq!(gpu.wrongs(), [""; 0]);
    assert!(gpu.most_in_flight() <= MOST_IN_FLIGHT);
}

/// Grouping by the host reads what the router wrote and writes what experts read.
#[test]
fn the_host_waits_before_it_groups_rows() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let profile = profile().without(Switch::DeviceRouting);
    let device = device(&gpu, &model, profile);
    let options = lily_model::RunnerOptions { context: 512, max_chunk: 256, max_decode_rows: 1 };
    let mut runner =
        lily_model::Runner::new(model.geometry.clone(), model.weights.packed().0, device, options);
    let sequence = runner.open().unwrap();
    gpu.take_submissions();
    runner.prefill(sequence, &[3; 70], LogitRows::Last).unwrap();
    assert!(gpu.take_submissions().len() > model.geometry.layers.len());
    assert_eq!(gpu.wrongs(), [""; 0]);
}

/// With a trace, each stage is told by itself, by the names of its launches.
#[test]
fn a_trace_names_every_stage() {
    let (gpu, model) = (FakeGpu::new(), tiny());
    let weights = model.weights.packed().0;
    let told: Arc<std::sync::Mutex<Vec<(String, f64)>>> = Arc::default();
    let heard = told.clone();
    let trace: lily_model::device::Trace =
        Arc::new(move |label, span| heard.lock().unwrap().push((label.to_owned(), span.end - span.start)));
    let mut device = device(&gpu, &model, profile());
    Device::trace(&mut device, trace).unwrap();
    let limits = RunnerOptions { context: 256, max_chunk: 64, max_decode_rows: 1 };
    let mut runner = Runner::new(model.geometry.clone(), weights.clone(), device, limits);
    let sequence = runner.open().unwrap();
    runner.decode(&[(sequence, 1)]).unwrap();
    let profile = profile();
    let plan = plan::decode(target(&model, &weights, &profile), DecodeShape::logits(1, 256)).unwrap();
    let told = told.lock().unwrap();
    let stages: Vec<&String> = told.iter().map(|t| &t.0).filter(|t| t.starts_with("decode: ")).collect();
    let wanted: Vec<String> = plan.stages.iter().map(|stage| stage_label(&plan, stage)).collect();
    assert_eq!(stages, wanted.iter().collect::<Vec<_>>());
    assert!(wanted.iter().any(|label| label.contains("), ")), "no stage has two launches: {wanted:?}");
    assert!(told.iter().all(|t| t.1 == 0.5));
}
