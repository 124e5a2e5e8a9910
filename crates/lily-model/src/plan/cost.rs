//! What a plan costs, against what it could not do without.

use lily_kernels::Activation;
use serde::Serialize;

use super::{Launch, Phase, Plan, Target};
use crate::{LayerKind, LayerWeights, MixerWeights, QuantizedMatrix};

/// Launches, stages, bytes and operations of a plan or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Kernel launches.
    pub launches: usize,
    /// Runs of launches between barriers.
    pub stages: usize,
    /// Times that the host waits for the device inside the plan.
    pub host_waits: usize,
    /// Bytes that launches read and write, each byte once a launch.
    pub bytes: u64,
    /// Bytes that no plan for this work could leave out ([`PlanCost::of`]).
    pub floor_bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// The cost of one layer of each kind: the one with the most launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayerCost {
    /// A Gated DeltaNet layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gdn: Option<Cost>,
    /// An attention layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<Cost>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchCost {
    /// The stage it belongs to.
    pub stage: usize,
    /// The layer, if it belongs to one.
    pub layer: Option<usize>,
    /// What it is for.
    pub label: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
    /// The host executes it.
    pub on_host: bool,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// What a plan costs in all, by layer, and by launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanCost {
    /// The whole plan.
    pub total: Cost,
    /// By kind of layer.
    pub per_layer: LayerCost,
    /// Every launch.
    pub launches: Vec<LaunchCost>,
}

impl PlanCost {
    /// Counts a plan, for rows at the end of the plan's context.
    ///
    /// The floor of a decode step is every matrix that it needs once (of the experts as many as its rows can choose), the
    /// recurrent states read and written, and keys and values read. In prefill, where activations do not stay on the chip,
    /// come beside these the rows that go into and come out of each product, once; the residual stream, read and written
    /// where the mixer and the experts add to it; and the experts' outputs, read for their sum. Vectors, tables, scores and
    /// everything that a kernel could keep to itself are not part of it.
    pub fn of(target: Target<'_>, plan: &Plan) -> PlanCost {
        let mut launches = Vec::with_capacity(plan.launches.len());
        for (stage, range) in plan.stages.iter().enumerate() {
            launches
                .extend(plan.launches[range.clone()].iter().map(|l| launch_cost(stage, l, plan.activation)));
        }
        let layers: Vec<Cost> = (0..target.weights.layers.len())
            .map(|layer| Cost {
                floor_bytes: layer_floor(target, plan, layer),
                ..sum(launches.iter().filter(|l| l.layer == Some(layer)))
            })
            .collect();
        let of_kind = |kind| {
            let same = |(layer, _): &(usize, &Cost)| target.geometry.layers[*layer] == kind;
            layers.iter().enumerate().filter(same).map(|(_, cost)| *cost).max_by_key(|c| c.launches)
        };
        let floor_bytes = layers.iter().map(|c| c.floor_bytes).sum::<u64>() + tail_floor(target, plan);
        PlanCost {
            total: Cost { stages: plan.stages.len(), floor_bytes, ..sum(launches.iter()) },
            per_layer: LayerCost { gdn: of_kind(LayerKind::Delta), attention: of_kind(LayerKind::Attention) },
            launches,
        }
    }
}

fn launch_cost(stage: usize, launch: &Launch, activation: Activation) -> LaunchCost {
    let traffic = launch.kernel.traffic(activation);
    LaunchCost {
        stage,
        layer: launch.layer,
        label: launch.label,
        kernel: launch.kernel.name(),
        on_host: launch.on_host,
        read: traffic.iter().map(|t| t.read).sum(),
        written: traffic.iter().map(|t| t.written).sum(),
        flops: launch.kernel.flops(),
    }
}

/// Everything but the floor; a stage counts for each part that has a launch in it.
fn sum<'a>(launches: impl Iterator<Item = &'a LaunchCost>) -> Cost {
    let mut cost = Cost::default();
    let mut last = None;
    for launch in launches {
        cost.launches += 1;
        cost.stages += usize::from(last != Some(launch.stage));
        last = Some(launch.stage);
        cost.host_waits += usize::from(launch.on_host);
        cost.bytes = cost.bytes.saturating_add(launch.read).saturating_add(launch.written);
        cost.flops = cost.flops.saturating_add(launch.flops);
    }
    cost
}

/// A product of `rows` rows: the matrix, and in prefill what goes in and comes out.
fn product(plan: &Plan, matrices: &[&QuantizedMatrix], rows: usize) -> u64 {
    let weights: usize = matrices.iter().map(|m| m.bytes()).sum();
    let size = plan.activation.bytes();
    let outputs: usize = matrices.iter().map(|m| m.rows).sum();
    let activations = match plan.phase {
        Phase::Prefill => size * rows * (matrices[0].cols + outputs),
        Phase::Decode => 0,
    };
    (weights + activations) as u64
}

fn layer_floor(target: Target<'_>, plan: &Plan, layer: usize) -> u64 {
    let (g, rows) = (target.geometry, plan.slots * plan.rows);
    let LayerWeights { mixer, moe, .. } = &target.weights.layers[layer];
    let mixer = match mixer {
        MixerWeights::Delta(w) => {
            let states = 2 * 4 * plan.slots * g.delta.state_len();
            product(plan, &[&w.qkv, &w.z, &w.a, &w.b], rows) + product(plan, &[&w.out], rows) + states as u64
        }
        MixerWeights::Attention(w) => {
            let tokens = plan.slots * plan.context;
            let cache = plan.activation.bytes() * 2 * tokens * g.attention.kv_heads * g.attention.head_dim;
            product(plan, &[&w.q, &w.k, &w.v], rows) + product(plan, &[&w.o], rows) + cache as u64
        }
    };
    let pairs = rows * g.moe.top_k;
    let active = g.moe.experts.min(pairs);
    let experts = |m: &QuantizedMatrix| m.bytes() / m.experts * active;
    let size = plan.activation.bytes();
    let routed = experts(&moe.gate) + experts(&moe.up) + experts(&moe.down);
    // x by row, activations out of the first and into the second product, results by pair.
    let between = match plan.phase {
        Phase::Prefill => size * (rows * g.hidden + 2 * pairs * (g.moe.expert_width + g.hidden)),
        Phase::Decode => 0,
    };
    // The mixer's output goes there and nowhere else.
    let residual = match plan.phase {
        Phase::Prefill => rows * g.hidden * (4 * 4 - size),
        Phase::Decode => 0,
    };
    let shared_in = product(plan, &[&moe.shared_gate_proj, &moe.shared_up], rows);
    // Of gate and up only their product has to be stored.
    let unstored = match plan.phase {
        Phase::Prefill => size * rows * moe.shared_up.rows,
        Phase::Decode => 0,
    };
    mixer
        + product(plan, &[&moe.router, &moe.shared_gate], rows)
        + (routed + between + residual) as u64
        + shared_in
        - unstored as u64
        + product(plan, &[&moe.shared_down], rows)
}

fn tail_floor(target: Target<'_>, plan: &Plan) -> u64 {
    match plan.logit_rows {
        0 => 0,
        rows => product(plan, &[&target.weights.lm_head], rows),
    }
}
