//! The phase plans, over random sizes, formats and shapes: every read finds what it needs, nothing that runs side by side
//! gets in the way of the other, every view lies in its buffer, every tensor has its use.
#![allow(clippy::unwrap_used)] // failures of a test

mod check;
mod sizes;

use std::sync::{Arc, Mutex};

use lily_model::device::{Batch, Device, Room, StatePart};
use lily_model::plan::{Buffer, Phase, Plan, PlanError, decode, prefill};
use lily_model::testing::{Spec, model_in_memory};
use lily_model::{
    AttentionGeometry, DeltaGeometry, DeviceError, Format, Forward, LayerKind, LogitRows, Model, MoeGeometry,
    Runner, RunnerOptions, SequenceId, SnapshotId,
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

fn plan_of(model: &Model, (phase, rows, logits): (Phase, usize, LogitRows), context: usize) -> Plan {
    let (g, w) = (&model.geometry, &model.weights);
    match phase {
        Phase::Prefill => prefill(g, w, rows, context.max(rows), logits),
        Phase::Decode => decode(g, w, rows, context),
    }
    .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_hold_together(spec in specs(), shape in shapes(), context in 1usize..600) {
        let model = model_in_memory(&spec);
        let plan = plan_of(&model, shape, context);
        prop_assert_eq!(check(&plan, &model), Ok(()));
        let (phase, rows, logits) = shape;
        let made = match (phase, logits) {
            (Phase::Decode, _) | (_, LogitRows::All) => rows,
            (_, LogitRows::Last) => 1,
            (_, LogitRows::None) => 0,
        };
        prop_assert_eq!(plan.logit_rows, made);
    }

    /// The checker sees what it is for: without any one border between stages, something runs too early.
    #[test]
    fn no_border_between_stages_can_go(spec in specs(), shape in shapes()) {
        let model = model_in_memory(&spec);
        let plan = plan_of(&model, shape, 400);
        for border in 1..plan.stages.len() {
            let mut without = plan.clone();
            let second = without.stages.remove(border);
            without.stages[border - 1].end = second.end;
            prop_assert!(check(&without, &model).is_err(), "border {border} of {:?}", plan.stages);
        }
    }

    /// A plan depends on the context's bound in nothing but that bound and the length of keys and values: a step at any
    /// position below it runs the same launches.
    #[test]
    fn a_context_bounds_the_cache_and_nothing_else(spec in specs(), shape in shapes()) {
        let model = model_in_memory(&spec);
        let (small, large) = (plan_of(&model, shape, 400), plan_of(&model, shape, 4096));
        prop_assert_eq!(&small, &plan_of(&model, shape, 400));
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

/// Mistakes that a plan could have, each of which the checker must see.
#[test]
fn the_checker_sees_mistakes() {
    let model = model_in_memory(&Spec::tiny());
    let good = prefill(&model.geometry, &model.weights, 5, 64, LogitRows::All).unwrap();
    assert_eq!(check(&good, &model), Ok(()));
    let broken = |name: &str, change: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        assert!(check(&plan, &model).is_err(), "{name} was not seen");
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
    let (g, w) = (&model.geometry, &model.weights);
    for logits in [LogitRows::None, LogitRows::Last, LogitRows::All] {
        assert_eq!(prefill(g, w, 0, 10, logits), Err(PlanError::Empty));
        let too_many = PlanError::Context { rows: 11, context: 10 };
        assert_eq!(prefill(g, w, 11, 10, logits), Err(too_many));
        assert!(prefill(g, w, 10, 10, logits).is_ok());
    }
    assert_eq!(decode(g, w, 0, 10), Err(PlanError::Empty));
    assert_eq!(decode(g, w, 2, 0), Err(PlanError::Context { rows: 1, context: 0 }));
    assert!(decode(g, w, 4, 1).is_ok());
}

/// Plans that ran, with the positions of their rows.
type Log = Arc<Mutex<Vec<(Plan, Vec<u32>)>>>;

/// A device that computes nothing and writes down what it is asked to run.
struct Recorder(Log, u64);

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
    let device = Recorder(log.clone(), 0);
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
