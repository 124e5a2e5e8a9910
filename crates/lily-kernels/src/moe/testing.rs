//! Data of this family's cases.

use crate::random::Random;

/// Which experts the rows choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub(super) enum Choice {
    /// Any.
    Random,
    /// All rows the same ones: these have every row, the others none.
    Same,
    /// Mostly the first ones, so that experts differ in their rows.
    Skewed,
    /// Rows have no expert in common, as far as there are enough; otherwise each expert as often as any other.
    Distinct,
}

/// Ids `[rows, top_k]`, all different within a row.
pub(super) fn choose(
    random: &mut Random,
    rows: usize,
    experts: usize,
    top_k: usize,
    choice: Choice,
) -> Vec<u32> {
    let mut ids = Vec::with_capacity(rows * top_k);
    let common = random.below(experts);
    for row in 0..rows {
        let first = ids.len();
        while ids.len() < first + top_k {
            let slot = ids.len() - first;
            let id = match choice {
                Choice::Random => random.below(experts),
                Choice::Same => (common + slot) % experts,
                Choice::Skewed => random.below(experts).min(random.below(experts)).min(random.below(experts)),
                Choice::Distinct => (common + row * top_k + slot) % experts,
            } as u32;
            if !ids[first..].contains(&id) {
                ids.push(id);
            }
        }
    }
    ids
}

/// Logits `[rows, experts]` whose largest are those of `ids`, in their order.
#[allow(dead_code)]
pub(super) fn logits_for(random: &mut Random, experts: usize, top_k: usize, ids: &[u32]) -> Vec<f32> {
    let mut logits = Vec::with_capacity(ids.len() / top_k * experts);
    for row in ids.chunks(top_k) {
        let mut values: Vec<f32> = (0..experts).map(|_| 2.0 * random.unit()).collect();
        for (slot, id) in row.iter().enumerate() {
            values[*id as usize] = 2.5 + 0.25 * (top_k - slot) as f32 + 0.1 * random.unit();
        }
        logits.extend(values);
    }
    logits
}
