//! The n largest of many logits, without sorting them all.
//!
//! A vocabulary has 248,320 entries and n is some tens. The n-th largest of the maxima of blocks is at most the n-th
//! largest value of all (n blocks hold a value that large), so one pass finds a bound and a second one the few values
//! that reach it; only those are selected from and sorted.

use std::cmp::Ordering;

/// Values a block; 64 give about 4,000 maxima for the true vocabulary.
const BLOCK: usize = 64;

/// Reused buffers and the last result.
#[derive(Debug, Default)]
pub(super) struct Top {
    maxima: Vec<f32>,
    picked: Vec<(u32, f32)>,
}

/// By falling value; the lower id first on equal ones. Values are not NaN.
pub(super) fn by_rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The largest of values that are not NaN; -inf of none. Sixteen running maxima, so that it compiles to vector
/// instructions, which a single one (an ordered reduction) does not.
pub(super) fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, rest) = values.as_chunks::<16>();
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

impl Top {
    /// The `n` largest of `values` with their indices, in order of rank. Values are not NaN.
    pub(super) fn largest(&mut self, values: &[f32], n: usize) -> &[(u32, f32)] {
        let n = n.min(values.len());
        self.picked.clear();
        if n == 0 {
            return &self.picked;
        }
        let bound = self.bound(values, n);
        self.picked
            .extend(values.iter().enumerate().filter(|(_, v)| **v >= bound).map(|(id, v)| (id as u32, *v)));
        if self.picked.len() > n {
            self.picked.select_nth_unstable_by(n - 1, by_rank);
            self.picked.truncate(n);
        }
        self.picked.sort_unstable_by(by_rank);
        &self.picked
    }

    /// The candidate with which the weights of all up to it in order of rank sum to at least `mass`; the last one where
    /// rounding leaves the sum below. Weights fall with the values. A selection by halves: half of the candidates that
    /// are left, and half of their exponentials, are done with in each round.
    pub(super) fn last_of_mass(
        &mut self,
        values: &[f32],
        weight: impl Fn(f32) -> f64,
        mass: f64,
    ) -> Option<(u32, f32)> {
        self.picked.clear();
        self.picked.extend(values.iter().enumerate().map(|(id, v)| (id as u32, *v)));
        let mut left = &mut self.picked[..];
        let mut missing = mass;
        while left.len() > 1 {
            let half = left.len() / 2;
            left.select_nth_unstable_by(half, by_rank);
            let (upper, lower) = left.split_at_mut(half);
            let sum: f64 = upper.iter().map(|&(_, value)| weight(value)).sum();
            left = if sum >= missing {
                upper
            } else {
                missing -= sum;
                lower
            };
        }
        left.first().copied()
    }

    /// A number that at least `n` values reach.
    fn bound(&mut self, values: &[f32], n: usize) -> f32 {
        if n > values.len().div_ceil(BLOCK) {
            return f32::NEG_INFINITY;
        }
        self.maxima.clear();
        self.maxima.extend(values.chunks(BLOCK).map(maximum));
        let (_, bound, _) =
            self.maxima.select_nth_unstable_by(n - 1, |a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
        *bound
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_full_sort(
            values in prop::collection::vec(prop_oneof![-3i8..3, Just(i8::MIN)], 0..700),
            n in 0usize..800,
        ) {
            let value = |&v: &i8| if v == i8::MIN { f32::NEG_INFINITY } else { f32::from(v) / 2.0 };
            let values: Vec<f32> = values.iter().map(value).collect();
            let mut sorted: Vec<_> = values.iter().enumerate().map(|(id, v)| (id as u32, *v)).collect();
            sorted.sort_by(by_rank);
            sorted.truncate(n);
            let largest = sorted.first().map_or(f32::NEG_INFINITY, |best| best.1);
            prop_assert!(n == 0 || maximum(&values) == largest);
            let mut top = Top::default();
            prop_assert_eq!(top.largest(&values, n), &sorted[..]);
        }

        #[test]
        fn the_last_of_a_mass_is_that_of_a_full_sort(
            values in prop::collection::vec((1u8..20).prop_map(f32::from), 1..400),
            share in 0.0f64..1.1,
        ) {
            // Whole weights, so that sums are exact in any order.
            let mass = (values.iter().copied().map(f64::from).sum::<f64>() * share).floor();
            let mut sorted: Vec<_> = values.iter().enumerate().map(|(id, v)| (id as u32, *v)).collect();
            sorted.sort_by(by_rank);
            let mut sum = 0.0;
            let reached = sorted.iter().find(|(_, v)| {
                sum += f64::from(*v);
                sum >= mass
            });
            let wanted = reached.or(sorted.last()).copied();
            prop_assert_eq!(Top::default().last_of_mass(&values, f64::from, mass), wanted);
        }
    }

    #[test]
    fn zeros_of_either_sign_are_equal() {
        assert_eq!(Top::default().largest(&[-0.0, 0.0, -1.0], 2), [(0, -0.0), (1, 0.0)]);
    }
}
