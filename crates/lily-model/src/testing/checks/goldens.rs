//! The fixtures against the oracle, with every mechanism and with each one off: exact, and in bf16 as far off as the emulator may be.

use super::{Check, Subject, check, fixture, runner};
use crate::plan::{Activation, Profile};
use crate::testing::oracle::{Bf16Sum, Feed, Golden, all_logits, check_exact, check_states, other_profiles};
use crate::{Forward, Model};

/// Prompts of the checks with other profiles: both sides of a page.
const LONGEST: usize = 65;

pub(super) fn all<S: Subject>() -> Vec<Check<S>> {
    let mut checks = Vec::new();
    for model in ["nano", "micro"] {
        checks.push(check(format!("{model} exact"), move |set| exact(set, model)));
        for decoded in [10, 0] {
            let name = format!("{model} bf16, {decoded} decoded");
            checks.push(check(name, move |set| bf16(set, model, decoded)));
        }
    }
    // Of any GPU: thresholds differ, mechanisms do not.
    let every = Profile::cuda("", 0, 0.0);
    for (name, _) in other_profiles(&every) {
        for model in ["nano", "micro"] {
            for activation in [Activation::F32, Activation::Bf16] {
                let of = name.clone();
                let what = format!("{model} {} {name}", activation.name());
                checks.push(check(what, move |set| other(set, model, activation, &of)));
            }
        }
    }
    checks
}

fn rows<S: Subject>(set: &S, model: &Model, profile: &Profile, golden: &Golden, feed: Feed) -> Vec<Vec<f32>> {
    let mut runner = runner(set, model, profile);
    let sequence = runner.open().unwrap();
    all_logits(&mut runner, sequence, &golden.tokens, feed)
}

/// The last tokens one at a time.
fn exact<S: Subject>(set: &S, name: &str) -> String {
    let (model, profile) = (fixture(set, name), set.profile(Activation::F32));
    let (mut logits, mut states) = (0.0f32, 0.0f32);
    for golden in Golden::all(set.fixtures(), name) {
        let mut runner = runner(set, &model, &profile);
        let sequence = runner.open().unwrap();
        let len = golden.tokens.len();
        let feed = Feed { chunk: 512, decode_from: len - len.min(20) / 2 };
        let rows = all_logits(&mut runner, sequence, &golden.tokens, feed);
        logits = logits.max(check_exact(&golden, &rows, "prefill and decode"));
        states = states.max(check_states(&golden, &runner, sequence, &model));
    }
    format!("logits within {logits:.1e} of the largest, states {states:.1e}")
}

fn bf16<S: Subject>(set: &S, name: &str, decoded: usize) -> String {
    let (model, profile) = (fixture(set, name), set.profile(Activation::Bf16));
    let mut sum = Bf16Sum::default();
    for golden in Golden::all(set.fixtures(), name) {
        let len = golden.tokens.len();
        let feed = Feed { chunk: 512, decode_from: len - len.min(2 * decoded) / 2 };
        let rows = rows(set, &model, &profile, &golden, feed);
        sum.add(&golden, &rows, "bf16");
    }
    sum.check(name);
    sum.text()
}

fn other<S: Subject>(set: &S, name: &str, activation: Activation, of: &str) -> String {
    let profiles = other_profiles(&set.profile(activation));
    let (_, profile) = profiles.into_iter().find(|(name, _)| name == of).unwrap();
    let (model, profile) = (fixture(set, name), profile.with_activation(activation));
    let (mut sum, mut off) = (Bf16Sum::default(), 0.0f32);
    for golden in Golden::short(set.fixtures(), name, LONGEST) {
        // Half in chunks that end nowhere in particular, half in steps.
        let feed = Feed { chunk: 23, decode_from: golden.tokens.len() / 2 };
        let rows = rows(set, &model, &profile, &golden, feed);
        match activation {
            Activation::F32 => off = off.max(check_exact(&golden, &rows, of)),
            _ => sum.add(&golden, &rows, of),
        }
    }
    if activation == Activation::F32 {
        return format!("logits within {off:.1e} of the largest");
    }
    sum.check(of);
    sum.text()
}
