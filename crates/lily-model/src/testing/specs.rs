//! Random models of unusual sizes and quantizations.

use lily_kernels::QuantFormat;
use lily_kernels::random::Random;

use super::Spec;
use crate::LayerKind::{Attention, Delta};
use crate::{AttentionGeometry, DeltaGeometry, Format, Geometry, Model, MoeGeometry};

fn one_of<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())]
}

/// A model that the checkpoint reader accepts, small, with everything drawn that may be: sizes, which layers, the format
/// of each matrix, how the checkpoint is stored.
pub fn random_spec(seed: u64) -> Spec {
    let random = &mut Random::new(seed);
    let (query_heads, kv_heads, head_dim, rotary_dim) = one_of(
        random,
        &[
            (4, 2, 32, 8),
            (8, 8, 20, 10),
            (6, 3, 32, 32),
            (8, 1, 12, 4),
            (5, 1, 64, 16),
            (12, 2, 8, 2),
            (2, 1, 48, 24),
        ],
    );
    let (key_heads, value_heads, key_dim, value_dim) = one_of(
        random,
        &[
            (2, 4, 16, 32),
            (3, 3, 37, 32),
            (1, 4, 32, 8),
            (2, 6, 8, 16),
            (1, 1, 64, 64),
            (4, 4, 5, 40),
            (1, 2, 128, 48),
        ],
    );
    let experts = 1 + random.below(9);
    let layers = (0..1 + random.below(4)).map(|_| one_of(random, &[Delta, Delta, Attention])).collect();
    let geometry = Geometry {
        hidden: one_of(random, &[32, 64, 96, 128, 160]),
        layers,
        vocab: 40 + random.below(160),
        rms_eps: one_of(random, &[1e-6, 1e-5, 0.01]),
        attention: AttentionGeometry {
            query_heads,
            kv_heads,
            head_dim,
            rotary_dim,
            rope_theta: one_of(random, &[1e4, 1e6, 1e7]),
        },
        delta: DeltaGeometry { key_heads, value_heads, key_dim, value_dim, conv_taps: 2 + random.below(4) },
        moe: MoeGeometry {
            experts,
            top_k: 1 + random.below(experts),
            expert_width: one_of(random, &[32, 64, 96, 128]),
            shared_width: one_of(random, &[32, 64, 160]),
        },
        max_context: 1024,
    };
    let format = format_for(random, geometry.hidden);
    let gates = format_for(random, geometry.hidden);
    let mut spec = Spec {
        geometry,
        format,
        gates,
        shards: 1 + random.below(3),
        wrapped: random.below(2) == 0,
        prefixed: random.below(2) == 0,
        tied: random.below(3) == 0,
        padded: random.below(2) == 0,
        extras: random.below(2) == 0,
        f32_vectors: random.below(3) == 0,
        seed,
        ..Spec::tiny()
    };
    spec.overrides = mixed_formats(&spec, random);
    spec
}

/// Any bits, and a group that divides the inputs.
fn format_for(random: &mut Random, inputs: usize) -> Format {
    let groups: Vec<usize> = QuantFormat::GROUPS.into_iter().filter(|g| inputs.is_multiple_of(*g)).collect();
    Format { bits: one_of(random, &QuantFormat::BITS), group: one_of(random, &groups) }
}

/// A format of its own for every matrix; paths are told apart by their ends.
fn mixed_formats(spec: &Spec, random: &mut Random) -> Vec<(String, Format)> {
    let g = &spec.geometry;
    let (hidden, moe) = (g.hidden, &g.moe);
    let inputs = [
        ("embed_tokens", hidden),
        ("lm_head", hidden),
        ("in_proj_qkv", hidden),
        ("in_proj_z", hidden),
        ("in_proj_a", hidden),
        ("in_proj_b", hidden),
        ("linear_attn.out_proj", g.delta.value_width()),
        ("q_proj", hidden),
        ("k_proj", hidden),
        ("v_proj", hidden),
        ("o_proj", g.attention.query_heads * g.attention.head_dim),
        ("switch_mlp.gate_proj", hidden),
        ("switch_mlp.up_proj", hidden),
        ("switch_mlp.down_proj", moe.expert_width),
        ("shared_expert.gate_proj", hidden),
        ("shared_expert.up_proj", hidden),
        ("shared_expert.down_proj", moe.shared_width),
    ];
    inputs.into_iter().map(|(path, inputs)| (path.to_owned(), format_for(random, inputs))).collect()
}

/// Token ids of a model.
pub fn random_tokens(random: &mut Random, model: &Model, len: usize) -> Vec<u32> {
    (0..len).map(|_| random.below(model.geometry.vocab) as u32).collect()
}
