//! Checks of whole models that are this device's own: weights where they are mapped, and times of stages.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use lily_kernels::Activation;
use lily_model::device::{Device, Span, Trace};
use lily_model::testing::checks::{self, Check, Subject, check, fixture, logits, runner_on};
use lily_model::testing::pack_checkpoint;
use lily_model::{Forward, LogitRows, Model};

use super::Set;
use crate::gpu::Gpu;

pub(super) fn all<G: Gpu>() -> Vec<Check<Set<G>>> {
    vec![
        check("a packed model is mapped and gives the same bits", mapped),
        check("a trace tells every stage in order", traced),
    ]
}

const PROMPT: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];

/// A folder of this process that goes when this does.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[allow(clippy::unwrap_used, reason = "a check fails by panicking")]
fn mapped<G: Gpu>(set: &Set<G>) -> String {
    let folder = Temporary(std::env::temp_dir().join(format!("lily-packed-{}", std::process::id())));
    let (original, profile) = (fixture(set, "nano"), set.profile(Activation::Bf16));
    pack_checkpoint(&set.fixtures().join("nano"), &folder.0).unwrap();
    let packed = Model::open(&folder.0).unwrap();
    let bits = |model: &Model, is_mapped: bool| {
        let device = set.device(model, &profile, 1 << 28);
        let described = device.describe();
        assert_eq!(described.ends_with(", weights mapped"), is_mapped, "{described}");
        let mut runner = runner_on(model, device);
        let sequence = runner.open().unwrap();
        runner.prefill(sequence, &PROMPT, LogitRows::All).unwrap();
        let prefilled = logits(&runner, PROMPT.len());
        runner.decode(&[(sequence, 7)]).unwrap();
        (prefilled, logits(&runner, 1))
    };
    assert!(bits(&original, false) == bits(&packed, true), "logits differ");
    "prefill and decode".to_owned()
}

#[allow(clippy::unwrap_used, reason = "a check fails by panicking")]
fn traced<G: Gpu>(set: &Set<G>) -> String {
    let (model, profile) = (checks::tiny(), set.profile(Activation::Bf16));
    let told: Arc<Mutex<Vec<(String, Span)>>> = Arc::default();
    let heard = told.clone();
    let trace: Trace = Arc::new(move |label, span| {
        heard.lock().unwrap_or_else(PoisonError::into_inner).push((label.to_owned(), span));
    });
    let bits = |trace: Option<Trace>| {
        let mut device = set.device(&model, &profile, 1 << 28);
        if let Some(trace) = trace {
            device.trace(trace).unwrap();
        }
        let mut runner = runner_on(&model, device);
        let sequence = runner.open().unwrap();
        runner.prefill(sequence, &PROMPT, LogitRows::Last).unwrap();
        runner.decode(&[(sequence, 7)]).unwrap();
        logits(&runner, 1)
    };
    assert!(bits(None) == bits(Some(trace)), "a trace changes results");
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    for phase in ["prefill: ", "decode: "] {
        assert!(
            told.iter().any(|(label, _)| label.starts_with(phase) && label.contains("lm_head")),
            "{phase}"
        );
    }
    assert!(told.iter().all(|(_, span)| span.start <= span.end), "a stage ended before it began");
    assert!(told.windows(2).all(|two| two[0].1.start <= two[1].1.start), "stages are not in order");
    format!("{} stages", told.len())
}
