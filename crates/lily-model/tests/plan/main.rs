//! The phase plans, over random sizes, formats and shapes: every read finds what it needs, nothing that runs side by side
//! gets in the way of the other, every view lies in its buffer, every tensor has its use.
#![allow(clippy::unwrap_used)] // failures of a test

mod check;
mod doc;
mod limits;
mod sizes;

use std::sync::{Arc, Mutex};

use lily_kernels::Activation;
use lily_model::device::{Batch, Device, Room, StatePart};
use lily_model::plan::{
    Buffer, DecodeShape, Effect, GatedNormPlace, Phase, Plan, PlanCost, PlanError, Profile, Switch, Switches,
    Tail, Target, decode, hazards, prefill,
};
use lily_model::testing::{Spec, model_in_memory};
use lily_model::{
    AttentionGeometry, DeltaGeometry, DeviceError, Format, Forward, LayerKind, LogitRows, Model, MoeGeometry,
    Packing, Preset, Runner, RunnerOptions, SequenceId, SnapshotId, Weights,
};
use proptest::prelude::*;
use proptest::sample::select;

use check::check;

prop_compose! {
    /// Models of any sizes that go together.
    fn specs()(
        hidden in select(vec![64, 128, 192]),
        layers in prop::collection::vec(select(vec![LayerKind::Delta, LayerKind::Attention]), 1..5),
        vocab in 1usize..90,
        (query_heads, kv_heads, head_dim) in
            select(vec![(4, 2, 32), (8, 8, 20), (6, 3, 32), (8, 1, 12), (1, 1, 64), (12, 2, 8)]),
        (key_heads, value_heads, key_dim, value_dim) in
            select(vec![(2, 4, 16, 32), (3, 3, 37, 32), (1, 4, 32, 8), (1, 1, 64, 64), (4, 4, 5, 40)]),
        conv_taps in 2usize..6,
        (experts, top_k) in (1usize..9).prop_flat_map(|experts| (Just(experts), 1..=experts)),
        (expert_width, shared_width) in (select(vec![32, 64, 96]), select(vec![32, 160])),
        (bits, router_bits, up_bits) in
            (select(vec![2, 3, 4, 5, 6, 8]), select(vec![4, 8]), select(vec![3, 4, 6])),
        (tied, extras, f32_vectors) in any::<(bool, bool, bool)>(),
    ) -> Spec {
        let mut spec = Spec::tiny();
        let g = &mut spec.geometry;
        (g.hidden, g.layers, g.vocab) = (hidden, layers, vocab);
        g.attention = AttentionGeometry { query_heads, kv_heads, head_dim, ..g.attention.clone() };
        g.attention.rotary_dim = head_dim / 4 * 2;
        g.delta = DeltaGeometry { key_heads, value_heads, key_dim, value_dim, conv_taps };
        g.moe = MoeGeometry { experts, top_k, expert_width, shared_width };
        spec.end_tokens = vec![0];
        spec.format = Format { bits, group: 32 };
        spec.gates = Format { bits: router_bits, group: 64 };
        // beside gate matrices of another format
        spec.overrides = vec![("up_proj".into(), Format { bits: up_bits, group: 64 })];
        (spec.tied, spec.extras, spec.f32_vectors) = (tied, extras, f32_vectors);
        spec
    }
}

/// A prefill or a decode step of a size at which something changes, or of any.
fn shapes() -> impl Strategy<Value = (Phase, usize, LogitRows)> {
    let rows = prop_oneof![select(vec![1usize, 2, 47, 48, 49, 64, 300]), 1usize..400];
    let logits = select(vec![LogitRows::None, LogitRows::Last, LogitRows::All]);
    prop_oneof![
        (rows, logits).prop_map(|(rows, logits)| (Phase::Prefill, rows, logits)),
        (1usize..9).prop_map(|slots| (Phase::Decode, slots, LogitRows::All)),
    ]
}

/// The CPU device, or a GPU in float32 with any mechanisms and low thresholds.
fn profiles() -> impl Strategy<Value = Profile> {
    let gpu = (any::<u32>(), any::<bool>(), 1usize..9, select(vec![16usize, 32, 64])).prop_map(
        |(off, prologue, gqa_pack, tile_rows)| {
            let mut profile = Profile::emulator().with_activation(Activation::F32);
            // Most mechanisms on, as they are used.
            for (i, switch) in Switch::ALL.into_iter().enumerate() {
                if off & (off >> 7) & 1 << i != 0 {
                    profile = profile.without(switch);
                }
            }
            if prologue {
                profile.gated_norm = GatedNormPlace::Prologue;
            }
            (profile.attention_block, profile.block_attention_above) = (64, 64);
            Profile { gqa_pack, tile_rows, ..profile }
        },
    );
    prop_oneof![1 => Just(Profile::cpu()), 3 => gpu]
}

/// A model as a device loads it.
struct Loaded {
    model: Model,
    weights: Weights,
    packing: Option<Packing>,
    profile: Profile,
}

impl Loaded {
    fn new(spec: &Spec, profile: Profile) -> Self {
        let model = model_in_memory(spec);
        let (weights, packing) = match profile.is_gpu() {
            true => {
                let (weights, packing) = model.weights.packed();
                (weights, Some(packing))
            }
            false => (model.weights.clone(), None),
        };
        Loaded { model, weights, packing, profile }
    }

    fn target(&self) -> Target<'_> {
        Target { geometry: &self.model.geometry, weights: &self.weights, profile: &self.profile }
    }

    fn plan(&self, (phase, rows, logits): (Phase, usize, LogitRows), context: usize) -> Plan {
        // Products of few rows take four.
        let slots = if self.profile.has(Switch::RowGemv) { 1 + (rows - 1) % 4 } else { rows };
        match phase {
            Phase::Prefill => prefill(self.target(), rows, context.max(rows), logits),
            Phase::Decode => {
                let hands_over = self.profile.is_gpu() && self.profile.has(Switch::TokenHandoff);
                let tail = if hands_over { Tail::Select { entries: 3 } } else { Tail::Logits };
                decode(self.target(), DecodeShape { slots, rows: 1, context, tail })
            }
        }
        .unwrap()
    }

    fn check(&self, plan: &Plan) -> Result<(), String> {
        check(plan, &self.model, self.packing.as_ref())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_hold_together(spec in specs(), profile in profiles(), shape in shapes(), context in 1usize..600) {
        let loaded = Loaded::new(&spec, profile);
        let plan = loaded.plan(shape, context);
        prop_assert_eq!(loaded.check(&plan), Ok(()));
        let made = match shape {
            (Phase::Decode, ..) => plan.slots,
            (_, rows, LogitRows::All) => rows,
            (_, _, LogitRows::Last) => 1,
            (_, _, LogitRows::None) => 0,
        };
        prop_assert_eq!(plan.logit_rows, made);
    }

    /// Both checkers see what they are for: without any one border between stages, something runs too early.
    #[test]
    fn no_border_between_stages_can_go(spec in specs(), profile in profiles(), shape in shapes()) {
        let profile = profile.clone().with_switches(profile.switches.with(Switch::ConcurrentPass));
        let loaded = Loaded::new(&spec, profile);
        let plan = loaded.plan(shape, 400);
        prop_assert_eq!(hazards(&plan.launches, &plan.stages), []);
        for border in 1..plan.stages.len() {
            let mut without = plan.clone();
            let second = without.stages.remove(border);
            without.stages[border - 1].end = second.end;
            prop_assert!(!hazards(&without.launches, &without.stages).is_empty(), "border {border}");
            prop_assert!(loaded.check(&without).is_err(), "border {border} of {:?}", plan.stages);
        }
    }

    /// A plan depends on the context's bound in nothing but that bound and the length of keys and values, and on GPUs in
    /// whether it is split: a step at any position below it runs the same launches.
    #[test]
    fn a_context_bounds_the_cache_and_nothing_else(spec in specs(), profile in profiles(), shape in shapes()) {
        let loaded = Loaded::new(&spec, profile.without(Switch::BlockAttention));
        let (small, large) = (loaded.plan(shape, 400), loaded.plan(shape, 4096));
        prop_assert_eq!(&small, &loaded.plan(shape, 400));
        prop_assert_eq!(&small.stages, &large.stages);
        prop_assert_eq!(small.arena_bytes, large.arena_bytes);
        for (a, b) in small.launches.iter().zip(&large.launches) {
            prop_assert_eq!((a.label, a.layer), (b.label, b.layer));
            for (a, b) in a.bindings.iter().zip(&b.bindings) {
                if !matches!(a.buffer, Buffer::Keys { .. } | Buffer::Values { .. }) {
                    prop_assert_eq!(a, b);
                }
            }
        }
    }
}

/// The plan of the mission's model on every GPU: stages, launches and bytes of a decode step, launches and waits of a chunk.
#[test]
fn plans_of_the_model_meet_their_budgets() {
    let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
    let (weights, _) = preset.weights().packed();
    let geometry = &preset.geometry;
    for name in Profile::names() {
        let profile = Profile::named(name).unwrap();
        if !profile.is_gpu() {
            continue;
        }
        let target = Target { geometry, weights: &weights, profile: &profile };
        for context in [256, 512, 513, 4096, 131_072, 262_144] {
            let tail = Tail::Select { entries: 1 };
            let plan = decode(target, DecodeShape { slots: 1, rows: 1, context, tail }).unwrap();
            let PlanCost { total, per_layer, .. } = PlanCost::of(target, &plan);
            assert!(per_layer.gdn.unwrap().stages <= 6 && per_layer.attention.unwrap().stages <= 7, "{name}");
            assert!(total.stages <= 260 && total.launches <= 330, "{name}: {total:?}");
            // Blocks of 128 keys, which NVIDIA's GPUs want for short contexts, cost more in long ones: their own kernels join four of them from
            // 16,384 tokens on (lily-cuda, `native::attention`), the shared text does not.
            let mut bytes = vec![(total, 1.03)];
            if profile.attention_block < 512 && context > 16_384 {
                let profile = Profile { attention_block: 512, ..profile.clone() };
                let shape = DecodeShape { slots: 1, rows: 1, context, tail };
                let joined = decode(Target { profile: &profile, ..target }, shape).unwrap();
                bytes = vec![(total, 1.1), (PlanCost::of(target, &joined).total, 1.03)];
            }
            for (total, most) in bytes {
                let most = most * total.floor_bytes as f64;
                assert!(total.bytes as f64 <= most, "{name} at {context}: {total:?}");
            }
        }
        for context in [256, 4096, 131_072] {
            let rows = context.min(profile.prefill_chunk);
            let plan = prefill(target, rows, context, LogitRows::Last).unwrap();
            let PlanCost { total, per_layer, .. } = PlanCost::of(target, &plan);
            assert_eq!(total.host_waits, 0);
            assert!(per_layer.gdn.unwrap().launches <= 20, "{name}: {per_layer:?}");
            if context == 4096 && rows == 4096 {
                assert!(total.bytes as f64 <= 1.3 * total.floor_bytes as f64, "{name}: {total:?}");
            }
        }
        let bare = profile.clone().with_switches(Switches::NONE);
        let target = Target { profile: &bare, ..target };
        let plan = decode(target, DecodeShape::logits(1, 4096)).unwrap();
        let total = PlanCost::of(target, &plan).total;
        assert!((700..=900).contains(&total.launches) && total.stages == total.launches, "{total:?}");
    }
}

/// The floor of a decode step is what the model's description says: 1.67 GB of matrices, 126 MB of DeltaNet state, and
/// 20 KiB for each token of context.
#[test]
fn the_floor_of_a_step_is_the_models() {
    let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
    let (weights, _) = preset.weights().packed();
    let profile = Profile::named("metal:m5-max").unwrap();
    let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
    let floor = |context| {
        let plan = decode(target, DecodeShape::logits(1, context)).unwrap();
        PlanCost::of(target, &plan).total.floor_bytes
    };
    let state = 30 * 2 * 4 * 32 * 128 * 128;
    let at_one = floor(1) - 20 * 1024;
    assert!((at_one - state).abs_diff(1_670_000_000) < 5_000_000, "{}", at_one - state);
    assert_eq!(state, 125_829_120);
    assert_eq!(floor(131_072) - floor(1), 131_071 * 20 * 1024);
}

/// Turning any one mechanism off changes a plan where it says that it does, and only there.
#[test]
fn every_mechanism_has_its_effect() {
    let preset = Preset::named("layer4").unwrap();
    let (weights, _) = preset.weights().packed();
    let on = Profile::named("metal:m5-max").unwrap();
    let plans = |profile: &Profile| {
        let target = Target { geometry: &preset.geometry, weights: &weights, profile };
        let hands_over = profile.has(Switch::TokenHandoff);
        let tail = if hands_over { Tail::Select { entries: 1 } } else { Tail::Logits };
        let step = decode(target, DecodeShape { slots: 1, rows: 1, context: 4096, tail }).unwrap();
        let chunk = prefill(target, 512, 4096, LogitRows::Last).unwrap();
        // What is launched; a plan also says which mechanisms it was built with.
        [chunk, step].map(|plan| Plan { switches: on.switches, ..plan })
    };
    for switch in Switch::ALL {
        let with_all = plans(&on.clone().with_switches(on.switches.with(switch)));
        let off = plans(&on.clone().without(switch));
        let (prefill_changes, decode_changes) = (off[0] != with_all[0], off[1] != with_all[1]);
        let wanted = match switch {
            // How long a chunk is, is not for the plan of one.
            Switch::ChunkedPrefill => (false, false),
            // Where the profile asks for chunks, the register scan is not in use.
            Switch::GdnRegscan => (true, false),
            _ => match switch.effect() {
                Effect::Prefill => (true, false),
                Effect::Decode => (false, true),
                Effect::Both => (true, true),
            },
        };
        assert_eq!((prefill_changes, decode_changes), wanted, "{}", switch.name());
    }
}

/// Mistakes that a plan could have, each of which the checker must see.
#[test]
fn the_checker_sees_mistakes() {
    let loaded = Loaded::new(&Spec::tiny(), Profile::cpu());
    let good = loaded.plan((Phase::Prefill, 5, LogitRows::All), 64);
    assert_eq!(loaded.check(&good), Ok(()));
    let broken = |name: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        assert!(loaded.check(&plan).is_err(), "{name} was not seen");
    };
    let find = |label: &str| good.launches.iter().position(|l| l.label == label).unwrap();
    broken("an arena that is too small", &|plan| plan.arena_bytes -= 64);
    broken("an arena that is too large", &|plan| plan.arena_bytes += 64);
    broken("two launches in the wrong order", &|plan| plan.launches.swap(find("route"), find("router")));
    broken("a launch that is missing", &|plan| {
        plan.launches.remove(find("conv_state"));
        plan.stages.last_mut().unwrap().end -= 1;
    });
    broken("operands that are swapped", &|plan| plan.launches[find("in_proj_a")].bindings.swap(2, 3));
    broken("another layer's tensor", &|plan| {
        let other = good.launches.iter().rposition(|l| l.label == "in_proj_z").unwrap();
        plan.launches[find("in_proj_z")].bindings[1] = good.launches[other].bindings[1].clone();
    });
    broken("another slot's state", &|plan| {
        let view = plan.launches[find("delta_scan")].bindings.last_mut().unwrap();
        view.buffer = Buffer::DeltaState { slot: 0, layer: 2 };
    });
    broken("a region that is written over", &|plan| {
        let z = plan.launches[find("in_proj_z")].bindings[4].clone();
        let out = &mut plan.launches[find("conv1d")].bindings[2];
        out.bytes = z.bytes.start..z.bytes.start + out.bytes.len();
    });
    broken("a row too many", &|plan| plan.launches[find("combine")].bindings[4].bytes.end += 4);
}

#[test]
fn no_plan_without_rows_or_beyond_the_context() {
    let model = model_in_memory(&Spec::tiny());
    let profile = Profile::cpu();
    let target = Target { geometry: &model.geometry, weights: &model.weights, profile: &profile };
    for logits in [LogitRows::None, LogitRows::Last, LogitRows::All] {
        assert_eq!(prefill(target, 0, 10, logits), Err(PlanError::Empty));
        let too_many = PlanError::Context { rows: 11, context: 10 };
        assert_eq!(prefill(target, 11, 10, logits), Err(too_many));
        assert!(prefill(target, 10, 10, logits).is_ok());
    }
    assert_eq!(decode(target, DecodeShape::logits(0, 10)), Err(PlanError::Empty));
    assert_eq!(decode(target, DecodeShape::logits(2, 0)), Err(PlanError::Context { rows: 1, context: 0 }));
    assert!(decode(target, DecodeShape::logits(4, 1)).is_ok());
}

/// Plans that ran, with the positions of their rows.
type Log = Arc<Mutex<Vec<(Plan, Vec<u32>)>>>;

/// A device that computes nothing and writes down what it is asked to run.
struct Recorder(Log, u64, Profile);

impl Device for Recorder {
    fn describe(&self) -> String {
        "a recorder".into()
    }
    fn open(&mut self) -> Result<SequenceId, DeviceError> {
        self.1 += 1;
        Ok(SequenceId(self.1))
    }
    fn close(&mut self, _: SequenceId) {}
    fn snapshot(&mut self, _: SequenceId, _: usize) -> Result<SnapshotId, DeviceError> {
        Ok(SnapshotId(0))
    }
    fn restore(&mut self, _: SnapshotId) -> Result<SequenceId, DeviceError> {
        self.open()
    }
    fn discard(&mut self, _: SnapshotId) {}
    fn profile(&self) -> &Profile {
        &self.2
    }
    fn snapshot_bytes(&self, _: SnapshotId) -> usize {
        0
    }
    fn state_bytes(&self) -> usize {
        0
    }
    fn reserve(&mut self, _: &[Room]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn run(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.0.lock().unwrap().push((plan.clone(), batch.positions.to_vec()));
        Ok(())
    }
    fn logits(&self, _: usize) -> &[f32] {
        &[]
    }
    fn state(&self, _: SequenceId, _: StatePart) -> Result<Vec<f32>, DeviceError> {
        Ok(Vec::new())
    }
}

/// Steps at all positions of a power of two share one plan, which covers them; the last is the context itself.
#[test]
fn steps_share_plans() {
    let model = model_in_memory(&Spec::tiny());
    let log = Log::default();
    let options = RunnerOptions { context: 700, max_chunk: 700, max_decode_rows: 2 };
    let device = Recorder(log.clone(), 0, Profile::cpu());
    let mut runner = Runner::new(model.geometry.clone(), model.weights.clone(), device, options);
    let sequence = runner.open().unwrap();
    let mut length = 0;
    for (chunk, context) in
        [(254, 256), (1, 256), (1, 256), (1, 512), (254, 512), (1, 512), (1, 700), (186, 700)]
    {
        runner.prefill(sequence, &vec![1; chunk], LogitRows::None).unwrap();
        length += chunk;
        let (plan, positions) = log.lock().unwrap().pop().unwrap();
        assert_eq!((plan.context, plan.rows), (context, chunk), "at {length} tokens");
        assert_eq!(positions, (length - chunk..length).map(|p| p as u32).collect::<Vec<_>>());
    }
    assert_eq!(
        runner.prefill(sequence, &[1; 2], LogitRows::None),
        Err(DeviceError::ContextFull { length: 699, more: 2, context: 700 })
    );
    let other = runner.open().unwrap();
    runner.decode(&[(other, 1), (sequence, 1)]).unwrap();
    runner.decode(&[(other, 1)]).unwrap();
    let steps = log.lock().unwrap();
    let seen: Vec<_> =
        steps.iter().map(|(plan, positions)| (plan.slots, plan.context, &positions[..])).collect();
    assert_eq!(seen, [(2, 700, &[0, 699][..]), (1, 256, &[1][..])]);
}
