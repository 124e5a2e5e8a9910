//! Whole models against a forward pass in f64 that is written without the plans: random checkpoints of sizes and
//! quantizations that the fixtures do not have. Closer than the fixtures are held to, whose oracle computes in f32 itself.
#![allow(clippy::unwrap_used)] // failures of a test

mod support;

use std::sync::Arc;

use lily_cpu::Isa;
use lily_kernels::random::Random;
use lily_model::device::StatePart;
use lily_model::testing::{
    Reference, Spec, clear_prompt, model_in_memory, random_spec, random_tokens, reference,
};
use lily_model::{
    AttentionGeometry, DeltaGeometry, Format, Forward, Geometry, LayerKind, Model, MoeGeometry,
};
use support::*;

/// Of the largest |logit|.
const LOGITS: f64 = 5e-6;
/// Of the largest value of a layer's state.
const STATES: f64 = 5e-6;
/// Where two experts are closer than this, f32 may choose the other one.
const MARGIN: f64 = 1e-5;

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |m, x| x.abs().max(m))
}

fn off(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let far =
        |(got, want): (&f32, &f64)| if got.is_finite() { (f64::from(*got) - want).abs() } else { f64::MAX };
    got.iter().zip(want).map(far).fold(0.0, f64::max)
}

/// Runs a prompt partly as a prefill and partly token by token; logits and states may each be off by a part of their
/// largest value.
fn compare(name: &str, model: &Arc<Model>, want: &Reference, tokens: &[u32], isa: Option<Isa>) {
    let mut runner = runner(model, 2, isa);
    let sequence = runner.open().unwrap();
    let rows = all_logits(&mut runner, sequence, tokens, 50, tokens.len() - tokens.len() / 4);
    let logits = off(&rows.concat(), &want.logits) / largest(&want.logits);
    let mut states = 0.0f64;
    for (layer, s, conv) in &want.states {
        let layer = *layer;
        let got_s = runner.state(sequence, StatePart::Delta { layer }).unwrap();
        let got_conv = runner.state(sequence, StatePart::Conv { layer }).unwrap();
        states = states.max(off(&got_s, s) / largest(s)).max(off(&got_conv, conv) / largest(conv));
    }
    println!("{name}: logits {logits:.1e}, states {states:.1e}, margin {:.0e}", want.margin);
    assert!(logits <= LOGITS && states <= STATES, "{name}: logits {logits:e}, states {states:e}");
}

fn check(name: &str, spec: &Spec, len: usize, isa: Option<Isa>) {
    let model = model_in_memory(spec);
    let (tokens, want) = clear_prompt(&model, &mut Random::new(spec.seed), len, MARGIN);
    compare(name, &Arc::new(model), &want, &tokens, isa);
}

/// Every size that a special case might hide behind.
fn unusual() -> Vec<(&'static str, Spec)> {
    use LayerKind::{Attention, Delta};
    let tiny = Spec::tiny;
    let with = |change: &dyn Fn(&mut Geometry)| {
        let mut spec = tiny();
        change(&mut spec.geometry);
        spec
    };
    let attention = |query_heads, kv_heads, head_dim, rotary_dim| {
        with(&|g| {
            g.layers = vec![Attention, Attention];
            g.attention =
                AttentionGeometry { query_heads, kv_heads, head_dim, rotary_dim, ..g.attention.clone() };
        })
    };
    let delta = |key_heads, value_heads, key_dim, value_dim, conv_taps| {
        with(&|g| {
            g.layers = vec![Delta, Delta];
            g.delta = DeltaGeometry { key_heads, value_heads, key_dim, value_dim, conv_taps };
        })
    };
    let moe = |experts, top_k, expert_width, shared_width| {
        with(&|g| g.moe = MoeGeometry { experts, top_k, expert_width, shared_width })
    };
    let mut specs = vec![
        ("attention only, as many KV heads as query heads", attention(4, 4, 32, 8)),
        ("eight query heads of 24 to a KV head, all dimensions turn", attention(8, 1, 24, 24)),
        ("four KV heads of 20", attention(16, 4, 20, 10)),
        ("one query head of 128", attention(1, 1, 128, 2)),
        ("DeltaNet only, as many key heads as value heads", delta(4, 4, 16, 32, 4)),
        ("four value heads to a key head, two taps", delta(1, 4, 37, 16, 2)),
        ("one head, five taps", delta(1, 1, 128, 64, 5)),
        ("every expert chosen", moe(5, 5, 64, 64)),
        ("one expert", moe(1, 1, 128, 64)),
        ("one of nine experts", moe(9, 1, 64, 192)),
    ];
    specs.push(("tied embeddings", Spec { tied: true, ..tiny() }));
    specs.push(("plain vectors in f32", Spec { f32_vectors: true, ..tiny() }));
    specs.push(("a large epsilon", with(&|g| g.rms_eps = 0.25)));
    let format = Format { bits: 2, group: 32 };
    specs.push(("two bits", Spec { format, gates: format, ..tiny() }));
    specs
}

#[test]
fn unusual_sizes() {
    for (name, spec) in unusual() {
        check(name, &spec, 24, None);
    }
}

#[test]
fn random_models() {
    let isas = Isa::available();
    for seed in 0..24 {
        let isa = isas[seed as usize % isas.len()];
        check(&format!("random model {seed} on {}", isa.name()), &random_spec(seed), 20, Some(isa));
    }
}

/// Over more than one page of keys, and rows on both sides of a panel.
#[test]
fn a_longer_prompt() {
    check("tiny, 150 tokens", &Spec::tiny(), 150, None);
}

/// The reference itself, once against the oracle: it is not merely equal to the plans.
#[test]
fn the_reference_meets_a_golden() {
    let model = fixture("nano");
    let goldens = Golden::all("nano");
    let (name, golden) = goldens.iter().find(|(name, _)| name.ends_with("p0007")).unwrap();
    let got = reference(&model, &golden.ids("tokens"));
    let vocab = model.geometry.vocab;
    for (want, position) in golden.f32("logits").chunks(vocab).zip(golden.ids("positions")) {
        let got = &got.logits[position as usize * vocab..][..vocab];
        assert!(off(want, got) <= LOGITS * largest(got), "{name}, position {position}");
    }
    for (layer, _, conv) in &got.states {
        assert!(off(&golden.f32(&format!("conv_state.{layer}")), conv) <= 1e-5, "{name}, layer {layer}");
    }
}

/// Errors must not be accepted because a model's logits are tiny or all alike.
#[test]
fn references_are_not_trivial() {
    for seed in 0..4 {
        let model = model_in_memory(&random_spec(seed));
        let mut random = Random::new(seed);
        let tokens = random_tokens(&mut random, &model, 12);
        let got = reference(&model, &tokens);
        let last = &got.logits[11 * model.geometry.vocab..];
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        let spread = (last.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / last.len() as f64).sqrt();
        assert!((0.1..100.0).contains(&spread), "seed {seed}: logits spread over {spread}");
    }
}

/// How far this device is from f64 on the sizes that the goldens have: less than the oracle, which computes in f32 too.
#[test]
fn fixtures() {
    for name in ["nano", "micro"] {
        let goldens = Golden::all(name);
        let (name, golden) = goldens.iter().find(|(golden, _)| golden.ends_with("p0065")).unwrap();
        let model = fixture(name.split('/').next().unwrap());
        let tokens = golden.ids("tokens");
        let want = reference(&model, &tokens);
        compare(name, &model, &want, &tokens, None);
    }
}
