//! The largest sizes: those that kernels of GPUs take have a text for every launch, those beyond are refused by name, and counts of
//! bytes and operations end at the largest number instead of starting again at 0.

use lily_kernels::{attention, delta, moe, select};
use lily_model::plan::{
    DecodeShape, GatedNormPlace, PlanCost, PlanError, Profile, Switch, Switches, Tail, Target, check_limits,
    decode, prefill,
};
use lily_model::{Geometry, LogitRows, Preset, Weights};

/// A limit of GPUs, and the size that it bounds.
type Limit = (&'static str, usize, fn(&mut Geometry) -> &mut usize);

const LIMITS: [Limit; 6] = [
    ("head_dim", attention::MOST_HEAD_DIM, |g| &mut g.attention.head_dim),
    ("linear_conv_kernel_dim", delta::MOST_TAPS, |g| &mut g.delta.conv_taps),
    ("linear_key_head_dim", delta::MOST_KEY_DIM, |g| &mut g.delta.key_dim),
    ("linear_value_head_dim", delta::MOST_VALUE_DIM, |g| &mut g.delta.value_dim),
    ("num_experts_per_tok", moe::MOST_CHOSEN, |g| &mut g.moe.top_k),
    ("vocab_size", select::MOST_VOCAB, |g| &mut g.vocab),
];

/// A preset with other sizes.
fn model(change: impl FnOnce(&mut Geometry)) -> (Geometry, Weights) {
    let mut preset = Preset::named("layer4").unwrap();
    change(&mut preset.geometry);
    let weights = preset.weights();
    (preset.geometry, weights)
}

#[test]
fn sizes_beyond_a_limit_are_refused_by_name() {
    let gpu = Profile::named("metal:m5-max").unwrap();
    for (field, most, size) in LIMITS {
        let (geometry, weights) = model(|g| *size(g) = most + 1);
        let want = PlanError::Size { field, found: most + 1, most, device: "metal:m5-max" };
        assert_eq!(check_limits(&geometry, &gpu), Err(want.clone()));
        let packed = weights.packed().0;
        let target = Target { geometry: &geometry, weights: &packed, profile: &gpu };
        assert_eq!(prefill(target, 64, 64, LogitRows::Last), Err(want.clone()));
        assert_eq!(decode(target, DecodeShape::logits(1, 64)), Err(want));
        let cpu = Profile::cpu();
        let target = Target { geometry: &geometry, weights: &weights, profile: &cpu };
        assert!(prefill(target, 64, 64, LogitRows::Last).is_ok() && check_limits(&geometry, &cpu).is_ok());
    }
}

/// Each limit alone and all of them, with the most heads and experts that a config may name.
#[test]
fn sizes_up_to_the_limits_have_a_text_for_every_launch() {
    let mut models: Vec<(Geometry, Weights)> =
        LIMITS.iter().map(|(_, most, size)| model(|g| *size(g) = *most)).collect();
    models.push(model(|g| LIMITS.iter().for_each(|(_, most, size)| *size(g) = *most)));
    models.push(model(|g| {
        LIMITS.iter().for_each(|(_, most, size)| *size(g) = *most);
        (g.attention.query_heads, g.attention.kv_heads) = (4096, 1);
        (g.delta.key_heads, g.delta.value_heads) = (1, 4096);
        g.moe.experts = 4096;
    }));
    let all = Profile::emulator();
    let mut profiles: Vec<Profile> = Switch::ALL.iter().map(|s| all.clone().without(*s)).collect();
    profiles.push(all.clone().with_switches(Switches::NONE));
    profiles.push(all.clone().with_switches(all.switches.with(Switch::GdnChunked)));
    profiles.push(Profile { gated_norm: GatedNormPlace::Prologue, ..all.clone() });
    profiles.push(all);
    for (geometry, weights) in &models {
        let weights = weights.packed().0;
        for profile in &profiles {
            let target = Target { geometry, weights: &weights, profile };
            let tail = Tail::Select { entries: 4 };
            let plans = [
                prefill(target, 700, 700, LogitRows::Last).unwrap(),
                decode(target, DecodeShape { slots: 4, rows: 1, context: 5000, tail }).unwrap(),
            ];
            for launch in plans.iter().flat_map(|plan| &plan.launches) {
                assert!(
                    launch.kernel.dispatch().is_some(),
                    "{:?} with {:?}",
                    launch.kernel,
                    profile.switches
                );
            }
        }
    }
}

/// What a config may name at most, and a prompt of as many tokens.
#[test]
fn counts_of_the_largest_sizes_do_not_overflow() {
    let (geometry, weights) = model(|g| {
        (g.hidden, g.vocab, g.max_context) = (1 << 20, 1 << 24, 1 << 24);
        (g.attention.query_heads, g.attention.kv_heads, g.attention.head_dim) = (4096, 4096, 4096);
        (g.delta.key_heads, g.delta.value_heads) = (4096, 4096);
        (g.delta.key_dim, g.delta.value_dim, g.delta.conv_taps) = (4096, 4096, 64);
        (g.moe.experts, g.moe.top_k) = (4096, 4096);
        (g.moe.expert_width, g.moe.shared_width) = (1 << 20, 1 << 20);
    });
    let profile = Profile::cpu();
    let target = Target { geometry: &geometry, weights: &weights, profile: &profile };
    let plan = prefill(target, 1 << 24, 1 << 24, LogitRows::Last).unwrap();
    assert_eq!(PlanCost::of(target, &plan).total.flops, u64::MAX);
    let plan = decode(target, DecodeShape::logits(4, 1 << 24)).unwrap();
    assert!(PlanCost::of(target, &plan).total.bytes > 1 << 50);
}
