//! Which kernels the answers of a model launch, in every size: what a release carries.

use std::collections::HashSet;

use lily_model::plan::{DecodeShape, Plan, PlanError, Profile, Tail, Target, decode, prefill};
use lily_model::{Geometry, LogitRows, Weights};

use crate::codes::Variant;
use crate::native::KernelSet;
use crate::prepared::variants;

/// Multiprocessors of GPUs that are sold, after NVIDIA's tables: native launches are shaped for them.
const CORES: &[usize] = &[
    20, 24, 28, 30, 34, 36, 46, 48, 56, 58, 60, 66, 68, 70, 72, 76, 80, 82, 84, 108, 114, 128, 132, 142, 170,
    188,
];

/// Sequences that a step is for at most: those that an interactive server sees.
const MOST_SLOTS: usize = 4;

/// Contexts of steps: the shortest, both sides of where a context is split into blocks, and the longest.
const CONTEXTS: &[usize] = &[64, 256, 512, 1024, 4096, 32_768, 131_072, 262_144];

/// Every number of rows of a chunk that may choose another kernel: each small one, then multiples of a quarter tile and one more.
fn rows(most: usize) -> impl Iterator<Item = usize> {
    let small = 1..=40;
    let large = (3..).map(|n| n * 16).take_while(|n| *n <= 1024);
    let larger = (9..).map(|n| n * 128).take_while(|n| *n <= 4096);
    small.chain(large.chain(larger).flat_map(|n| [n - 1, n, n + 1])).filter(move |n| *n <= most)
}

/// The kernels that answers of a model launch, shared and native, on the GPUs of this profile and any number of multiprocessors: every
/// chunk of prefill of up to `most_rows` rows, and decode of one to four sequences, with logits or choosing on the device.
///
/// # Errors
/// [`PlanError`] where the model has no plan.
pub fn answers(
    geometry: &Geometry,
    weights: &Weights,
    profile: &Profile,
    most_rows: usize,
) -> Result<Vec<Variant>, PlanError> {
    let target = Target { geometry, weights, profile };
    let mut found = Collected { ids: HashSet::new(), variants: Vec::new() };
    for rows in rows(most_rows.min(profile.prefill_chunk)) {
        found.add(&prefill(target, rows, profile.prefill_chunk, LogitRows::Last)?);
    }
    for slots in 1..=MOST_SLOTS {
        for &context in CONTEXTS {
            let shape = DecodeShape::logits(slots, context);
            found.add(&decode(target, shape)?);
            found.add(&decode(target, DecodeShape { tail: Tail::Select { entries: slots }, ..shape })?);
        }
    }
    Ok(found.variants)
}

struct Collected {
    ids: HashSet<crate::codes::Id>,
    variants: Vec<Variant>,
}

impl Collected {
    fn add(&mut self, plan: &Plan) {
        let native = CORES.iter().flat_map(|cores| variants(plan, KernelSet::Native, *cores));
        for variant in native.chain(variants(plan, KernelSet::Shared, CORES[0])) {
            if self.ids.insert(variant.id()) {
                self.variants.push(variant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_model::Preset;

    /// Chunks and steps of sizes that nobody listed launch nothing else.
    #[test]
    fn sizes_in_between_launch_nothing_new() {
        let preset = Preset::named("qwen3.6-35b-a3b").unwrap();
        let weights = preset.weights().packed().0;
        let profile = Profile::named("cuda").unwrap();
        let variants = answers(&preset.geometry, &weights, &profile, 4096).unwrap();
        let mut found = Collected { ids: HashSet::new(), variants: Vec::new() };
        found.ids.extend(variants.iter().map(Variant::id));
        assert!(variants.len() > 100, "{} kernels", variants.len());
        let target = Target { geometry: &preset.geometry, weights: &weights, profile: &profile };
        let step = 37; // of no power of two: over a hundred sizes
        for rows in (5usize..=4096).step_by(step) {
            for context in [rows.next_multiple_of(64), 262_144] {
                found.add(&prefill(target, rows, context, LogitRows::Last).unwrap());
            }
        }
        for context in [128, 448, 576, 2048, 5120, 65_536, 200_000] {
            found.add(&decode(target, DecodeShape::logits(3, context)).unwrap());
        }
        let new: Vec<_> = found.variants.iter().map(|v| (v.text.name, &v.constants, v.threads)).collect();
        assert!(new.is_empty(), "{new:?}");
    }
}
