//! Every mechanism turned off alone, and all at once: still the oracle's logits.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use lily_kernels::Activation;
use lily_model::Forward;
use lily_model::plan::Profile;
use support::*;

/// Lengths of prompts: the longest has tokens on both sides of a page's end, in steps, and blocks of attention by lowered thresholds. It takes
/// most of the time: of the larger model `scripts/soak` alone has it (`LILY_ALL_LENGTHS`).
fn lengths(model_name: &str) -> &'static [usize] {
    let all = model_name == "nano" || std::env::var_os("LILY_ALL_LENGTHS").is_some();
    if all { &[1, 7, 65] } else { &[1, 7] }
}

/// Half of a prompt in chunks that end nowhere in particular, half in steps.
fn feed(golden: &Golden) -> Feed {
    Feed { chunk: 23, decode_from: golden.tokens.len() / 2 }
}

/// All logits of these goldens under each profile, handed to `check` with the profile's name.
fn each_profile(
    model_name: &str,
    activation: Activation,
    mut check: impl FnMut(&str, &[(Golden, Vec<Vec<f32>>)]),
) {
    let model = fixture(model_name);
    for (name, profile) in other_profiles(&Profile::emulator()) {
        let profile = profile.with_activation(activation);
        let of = |golden: Golden| {
            let mut runner = runner(&model, &profile, 1);
            let sequence = runner.open().unwrap();
            let rows = all_logits(&mut runner, sequence, &golden.tokens, feed(&golden));
            (golden, rows)
        };
        let lengths = lengths(model_name);
        let goldens = goldens(model_name).into_iter().filter(|golden| lengths.contains(&golden.tokens.len()));
        let all: Vec<_> = goldens.map(of).collect();
        assert_eq!(all.len(), lengths.len());
        check(&name, &all);
    }
}

fn exact_of(model_name: &str) {
    each_profile(model_name, Activation::F32, |name, all| {
        let off = all.iter().map(|(golden, rows)| check_exact(golden, rows, name));
        println!("{model_name} {name}: {:.1e}", off.fold(0.0, f32::max));
    });
}

fn bf16_of(model_name: &str) {
    each_profile(model_name, Activation::Bf16, |name, all| {
        let mut sum = Bf16Sum::default();
        all.iter().for_each(|(golden, rows)| sum.add(golden, rows, name));
        sum.check(&format!("{model_name} {name}"));
    });
}

#[test]
fn nano_in_f32() {
    exact_of("nano");
}

#[test]
fn micro_in_f32() {
    exact_of("micro");
}

#[test]
fn nano_in_bf16() {
    bf16_of("nano");
}

#[test]
fn micro_in_bf16() {
    bf16_of("micro");
}
