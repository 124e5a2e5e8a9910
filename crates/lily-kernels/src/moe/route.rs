//! The choice of experts.

use super::MOST_CHOSEN;
use crate::bindings::route;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// p = softmax of a row's logits; the `top_k` largest, the lower id first on equal values (0 and -0 are equal); weights p / sum
/// of the chosen p.
///
/// A row with a NaN still gets `top_k` different ids below `experts`, so that the launches behind it stay inside their
/// buffers; which ids, and what weights, is not defined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Rows.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Experts each row uses: at most [`MOST_CHOSEN`] on a GPU.
    pub top_k: usize,
}

impl Route {
    /// logits f32 `[rows, experts]`; ids u32 `[rows, top_k]`; weights f32 `[rows, top_k]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("logits"), Operand::write("ids").u32(), Operand::write("weights")];

    /// The definition, in f64: ids and weights.
    pub fn reference(&self, logits: &[f64]) -> (Vec<u32>, Vec<f64>) {
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for row in logits.chunks(self.experts) {
            let mut order: Vec<usize> = (0..self.experts).collect();
            // + 0.0 turns -0 into 0, which it equals
            order.sort_by(|a, b| (row[*b] + 0.0).total_cmp(&(row[*a] + 0.0)).then(a.cmp(b)));
            order.truncate(self.top_k);
            let p: Vec<f64> = order.iter().map(|e| (row[*e] - row[order[0]]).exp()).collect();
            let sum: f64 = p.iter().sum();
            ids.extend(order.iter().map(|e| *e as u32));
            weights.extend(p.iter().map(|p| p / sum));
        }
        (ids, weights)
    }

    /// All experts chosen, one chosen, and the true size.
    pub fn cases() -> Vec<Self> {
        let case = |rows, experts, top_k| Route { rows, experts, top_k };
        vec![case(1, 256, 8), case(7, 24, 8), case(3, 5, 5), case(4, 8, 1), case(2, 1, 1)]
    }
}

impl Contract for Route {
    fn traffic(&self, _: Activation) -> Vec<Traffic> {
        let chosen = Traffic::written(4 * self.rows * self.top_k);
        vec![Traffic::read(4 * self.rows * self.experts), chosen, chosen]
    }

    fn flops(&self) -> u64 {
        (self.rows * self.experts) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        if self.top_k > MOST_CHOSEN {
            return None;
        }
        let simdgroups = self.rows.min(4);
        let params =
            route::Params { rows: self.rows as u32, experts: self.experts as u32, top_k: self.top_k as u32 };
        let grid = [self.rows.div_ceil(simdgroups), 1, 1];
        Some(Dispatch::new(&route::TEXT, vec![], params.words(), grid, [32 * simdgroups, 1, 1]))
    }
}

/// How far off the weight of a chosen expert may be whose logit is `below` under the largest.
#[cfg(feature = "testing")]
pub(super) fn weight_error(b: crate::testing::Bounds, weight: f64, top_k: usize, below: f64) -> f64 {
    // Of a p: the exponential, and the rounding of its argument. The sum's terms have no more than the largest such error;
    // those far below carry no weight in it.
    let p = |below: f64| b.function() + below.min(100.0) * b.f32();
    weight * (p(below) + p(16.0) + b.sum(top_k, 32) + b.f32()) + crate::testing::TINY
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for Route {
    /// Experts a lane: none, one, a part of eight, eight, and more than a lane holds in registers. Rows that fill no
    /// threadgroup.
    fn gpu_cases() -> Vec<Self> {
        let case = |rows, experts, top_k| Route { rows, experts, top_k };
        let mut cases = Route::cases();
        cases.extend([case(5, 33, 4), case(2, 255, 8), case(3, 512, 10), case(2, 300, 32), case(1, 32, 32)]);
        cases.extend([case(9, 256, 8), case(70, 6, 2), case(1, 64, 16)]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, Store, wide};
        let b = Bounds::new(activation);
        let mut logits = random.values(self.rows * self.experts, 4.0);
        for row in logits.chunks_mut(self.experts).skip(1) {
            // Values that many experts share; zeros of both signs; one far above the rest.
            match random.below(4) {
                0 => row.iter_mut().for_each(|v| *v = v.round()),
                1 => row.iter_mut().for_each(|v| *v *= 0.0),
                2 => row[random.below(self.experts)] = 3e4,
                _ => (),
            }
        }
        let (mut ids, weights) = self.reference(&wide(&logits));
        let error = weights
            .iter()
            .enumerate()
            .map(|(p, w)| {
                let row = &logits[p / self.top_k * self.experts..][..self.experts];
                let largest = row[ids[p / self.top_k * self.top_k] as usize];
                weight_error(b, *w, self.top_k, f64::from(largest - row[ids[p] as usize]))
            })
            .collect();
        let with_nan = self.rows == 9;
        if with_nan {
            // The text takes NaN for larger than all numbers.
            let row = &mut logits[4 * self.experts..][..self.experts];
            row.fill(f32::NAN);
            ids[4 * self.top_k..][..self.top_k].iter_mut().enumerate().for_each(|(i, id)| *id = i as u32);
        }
        let ids_error = vec![0.0; ids.len()];
        let ids = ids.iter().map(|id| f64::from(*id)).collect();
        let build = CaseBuilder::new(*self, activation).input(&logits).output_as(Store::U32, ids, ids_error);
        if with_nan { build.scratch(weights.len()).build() } else { build.output(weights, error).build() }
    }
}
