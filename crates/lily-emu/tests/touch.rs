//! What each launch of whole plans touches, against what its kernel declares: never more, and exactly as much where data do not
//! decide.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::collections::{BTreeMap, BTreeSet};

use lily_kernels::bindings::TEXTS;
use lily_kernels::random::Random;
use lily_kernels::select::{END_TOKENS, Request};
use lily_kernels::{Activation, Traffic};
use lily_model::device::{self, Batch, Device};
use lily_model::plan::{GatedNormPlace, Plan, Profile, Switch, Switches, Tail};
use lily_model::testing::random_tokens;
use support::*;

/// Operands of which a launch touches less than it may: rows of the embedding by token, experts by routing, pages by position.
fn data_decide(kernel: &str, operand: &str) -> bool {
    let weights = || ["weight", "scales", "biases"].iter().any(|part| operand.ends_with(part));
    match kernel {
        "Embed" | "RoutedSwiglu" | "RoutedMatmul" | "DownCombine" => weights(),
        "GroupedSwiglu" | "GroupedMatmul" | "GroupedDense" => weights() || operand == "tiles",
        name => name.starts_with("Attend") && ["keys", "values", "partial"].contains(&operand),
    }
}

/// What launches declared and touched, by kernel, and the texts that ran.
#[derive(Default)]
struct Sums {
    bytes: BTreeMap<&'static str, (Traffic, Traffic)>,
    texts: BTreeSet<&'static str>,
}

fn add(sum: &mut Traffic, more: Traffic) {
    sum.read += more.read;
    sum.written += more.written;
}

fn check(bare: &Bare, plan: &Plan, sums: &mut Sums) {
    for t in bare.device.touched() {
        let launch = &plan.launches[t.launch];
        let name = launch.kernel.name();
        let (touched, declared) = (t.touched, t.declared);
        let what = format!("{name} ({}), operand {}: {touched:?} of {declared:?}", launch.label, t.operand);
        assert!(touched.read <= declared.read && touched.written <= declared.written, "{what}");
        assert!(touched == declared || data_decide(name, t.operand), "{what}");
        let (all_declared, all_touched) = sums.bytes.entry(name).or_default();
        add(all_declared, declared);
        add(all_touched, touched);
    }
    let texts = plan.launches.iter().map(|launch| launch.kernel.dispatch().unwrap().text.name);
    sums.texts.extend(texts);
}

/// Prompts on both sides of a page, and steps of three rows: one whose logits the host wants, and one that chooses tokens.
fn check_profile(profile: Profile, sums: &mut Sums) {
    let mut bare = Bare::new(fixture("nano"), profile, 1);
    let mut sequences = Vec::new();
    for len in [1, 30, 100] {
        let tokens = random_tokens(&mut Random::new(len as u64), &bare.model, len);
        sequences.push(bare.prompt(&tokens));
        check(&bare, &bare.chunk(len), sums);
    }
    let batch = Batch { sequences: &sequences, tokens: &[5, 6, 7], positions: &[1, 30, 100] };
    let plan = bare.plan(3, Tail::Logits);
    bare.device.run(&plan, &batch).unwrap();
    check(&bare, &plan, sums);
    let plan = bare.plan(3, Tail::Select { entries: 3 });
    let batch = Batch { positions: &[2, 31, 101], ..batch };
    // everything on, and nothing left out by the temperature: a request that reads all there is
    let vocab = bare.model.geometry.vocab;
    let request = |entry| Request {
        temperature: 100.0,
        min_p: 1e-6,
        top_k: vocab + 1,
        entry,
        has_counts: true,
        has_bias: true,
        has_mask: true,
        end_tokens: vec![u32::MAX; END_TOKENS],
        ..Request::greedy(vocab as u32)
    };
    let choices = bare.choices((0..3).map(request).collect());
    device::hand_over(&mut bare.device, &plan, &batch, &choices, 1).unwrap();
    check(&bare, &plan, sums);
}

/// A profile whose steps of more than 64 tokens split them into blocks.
fn profile(activation: Activation) -> Profile {
    let profile = Profile::emulator().with_activation(activation);
    Profile { block_attention_above: 64, attention_block: 64, ..profile }
}

fn without(profile: Profile, switches: &[Switch]) -> Profile {
    switches.iter().fold(profile, |profile, switch| profile.without(*switch))
}

#[test]
fn launches_touch_what_they_declare() {
    let mut sums = Sums::default();
    for activation in Activation::ALL {
        check_profile(profile(activation), &mut sums);
    }
    // profiles that together take every text, and every way through one that moves other bytes
    let all = profile(Activation::Bf16);
    let chunked = all.switches.with(Switch::GdnChunked);
    check_profile(all.clone().with_switches(Switches::NONE), &mut sums);
    check_profile(all.clone().with_switches(chunked), &mut sums);
    let fused = [Switch::FuseGdnConv, Switch::FuseQkPrep, Switch::FuseGateUp, Switch::FuseDownCombine];
    check_profile(without(all.clone(), &fused), &mut sums);
    let others =
        [Switch::FuseNorm, Switch::BlockAttention, Switch::CoalescedKv, Switch::GqaPack, Switch::Tile32x4];
    let prologue = Profile { gated_norm: GatedNormPlace::Prologue, ..all };
    check_profile(without(prologue, &others), &mut sums);

    for (name, (declared, touched)) in &sums.bytes {
        println!("{name}: {} bytes of {}", touched.total(), declared.total());
    }
    let all: BTreeSet<&str> = TEXTS.iter().map(|text| text.name).collect();
    assert_eq!(sums.texts, all, "the texts that these plans launch");
}
