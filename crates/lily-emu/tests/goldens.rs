//! The fixtures against the oracle, through the texts of the kernels: with f32 activations logits within 1e-4 of the largest
//! and top-1 equal; with bf16 activations no further off than transformers itself in bf16.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::time::Instant;

use lily_kernels::Activation;
use lily_model::Forward;
use lily_model::plan::Profile;
use support::*;

fn exact_of(model_name: &str) {
    let model = fixture(model_name);
    for golden in goldens(model_name) {
        let began = Instant::now();
        let mut runner = runner(&model, &exact(), 1);
        let sequence = runner.open().unwrap();
        // the last tokens one at a time
        let len = golden.tokens.len();
        let feed = Feed { chunk: 512, decode_from: len - len.min(20) / 2 };
        let rows = all_logits(&mut runner, sequence, &golden.tokens, feed);
        let off = check_exact(&golden, &rows, "prefill and decode");
        let states = check_states(&golden, &runner, sequence, &model);
        let seconds = began.elapsed().as_secs_f64();
        println!("{}: logits {off:.1e}, states {states:.1e}, {seconds:.1} s", golden.name);
    }
}

#[test]
fn nano_in_f32() {
    exact_of("nano");
}

#[test]
fn micro_in_f32() {
    exact_of("micro");
}

/// Each golden of a model with bf16 activations, and their sum: the last tokens one at a time, and the prompt in chunks alone.
fn bf16_of(model_name: &str) {
    let model = fixture(model_name);
    let profile = Profile::emulator().with_activation(Activation::Bf16);
    for decoded in [10, 0] {
        let mut sum = Bf16Sum::default();
        for golden in goldens(model_name) {
            let mut runner = runner(&model, &profile, 2);
            let sequence = runner.open().unwrap();
            let len = golden.tokens.len();
            let feed = Feed { chunk: 512, decode_from: len - len.min(2 * decoded) / 2 };
            let rows = all_logits(&mut runner, sequence, &golden.tokens, feed);
            sum.add(&golden, &rows, &format!("{decoded} decoded"));
        }
        sum.check(&format!("{model_name}, {decoded} decoded"));
    }
}

#[test]
fn nano_in_bf16() {
    bf16_of("nano");
}

#[test]
fn micro_in_bf16() {
    bf16_of("micro");
}
