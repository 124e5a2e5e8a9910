//! The choice of experts.

use crate::{Activation, Contract, Operand, Traffic};

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
    /// Experts each row uses.
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
}
