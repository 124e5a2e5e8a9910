//! Data of this family's cases.

use super::GroupTiles;
use crate::quant::{Method, silu};
use crate::random::Random;
use crate::testing::{Bounds, CaseBuilder, Matrix};

/// Which experts the rows choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Choice {
    /// All of them occur over a list of cases; where rows need have nothing in common, they have nothing in common.
    pub(super) fn of(rows: usize, experts: usize, top_k: usize) -> Self {
        match rows % 4 {
            _ if rows * top_k <= experts => Choice::Distinct,
            0 => Choice::Same,
            1 => Choice::Skewed,
            2 => Choice::Distinct,
            _ => Choice::Random,
        }
    }
}

/// Whether a launch of few rows touches as much as it can: no choice of experts has more different ones.
pub(super) fn most_experts(ids: &[u32], experts: usize) -> bool {
    let mut different = ids.to_vec();
    different.sort_unstable();
    different.dedup();
    different.len() == experts.min(ids.len())
}

/// The same of a launch in tiles.
pub(super) fn most_tiles(grouping: GroupTiles, ids: &[u32]) -> bool {
    most_experts(ids, grouping.experts) && grouping.reference(ids).1[0] as usize == grouping.max_tiles()
}

/// The product of x with a row of a matrix, and how far off it may be.
pub(super) fn product(b: Bounds, matrix: &Matrix, method: Method, row: usize, x: &[f64]) -> (f64, f64) {
    (matrix.product(row, x), matrix.error(b, method, row, x))
}

/// How far SiLU(gate) * up may be off before it is stored. SiLU is nowhere steeper than 1.1.
pub(super) fn gated_error(b: Bounds, (gate, gate_error): (f64, f64), (up, up_error): (f64, f64)) -> f64 {
    let steep = 1.1 * gate_error;
    steep * (up.abs() + up_error) + silu(gate).abs() * (up_error + up.abs() * (b.function() + 4.0 * b.f32()))
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

/// The three operands of a matrix.
pub(super) fn with_matrix(builder: CaseBuilder, matrix: &Matrix) -> CaseBuilder {
    let (weight, scales, biases) = matrix.tensors();
    builder.tensor(weight).tensor(scales).tensor(biases)
}
