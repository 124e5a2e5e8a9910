//! What each launch of whole plans touches, against what its kernel declares: never more, and exactly as much where data do not
//! decide.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::collections::BTreeMap;

use lily_kernels::random::Random;
use lily_kernels::{Activation, Traffic};
use lily_model::device::{Batch, Device};
use lily_model::plan::{Plan, Profile, Tail};
use lily_model::testing::random_tokens;
use support::*;

/// Operands of which a launch touches less than it may: rows of the embedding by token, experts by routing, pages by position.
fn data_decide(kernel: &str, operand: &str) -> bool {
    match kernel {
        "Embed" => operand.ends_with("weight") || operand.ends_with("scales") || operand.ends_with("biases"),
        "GroupTiles" | "GroupedSwiglu" | "GroupedMatmul" | "RoutedSwiglu" | "RoutedMatmul"
        | "DownCombine" => true,
        name => name.starts_with("Attend") && ["keys", "values", "partial"].contains(&operand),
    }
}

/// Bytes declared and touched, of each kernel.
type Sums = BTreeMap<&'static str, (Traffic, Traffic)>;

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
        let (all_declared, all_touched) = sums.entry(name).or_default();
        add(all_declared, declared);
        add(all_touched, touched);
    }
}

#[test]
fn launches_touch_what_they_declare() {
    let model = fixture("nano");
    for activation in [Activation::F32, Activation::Bf16] {
        let profile = Profile { block_attention_above: 64, attention_block: 64, ..Profile::emulator() };
        let mut bare = Bare::new(model.clone(), profile.with_activation(activation), 1);
        let mut sums = Sums::new();
        let mut sequences = Vec::new();
        for len in [1, 30, 100] {
            let tokens = random_tokens(&mut Random::new(len as u64), &model, len);
            sequences.push(bare.prompt(&tokens));
            check(&bare, &bare.chunk(len), &mut sums);
        }
        let plan = bare.plan(3, Tail::Logits);
        let batch = Batch { sequences: &sequences, tokens: &[5, 6, 7], positions: &[1, 30, 100] };
        bare.device.run(&plan, &batch).unwrap();
        check(&bare, &plan, &mut sums);
        for (name, (declared, touched)) in sums {
            println!("{} {name}: {} bytes of {}", activation.name(), touched.total(), declared.total());
        }
    }
}
