//! The queries out of the joint projection of queries and gates.

use crate::bindings::split_query;
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

/// `q[r, i]` is the first half of head i of `qg[r]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitQuery {
    /// Rows.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl SplitQuery {
    /// qg act `[rows, heads, 2, head_dim]`; q act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] = &[Operand::read("qg").act(), Operand::write("q").act()];

    /// Widths that fill no vector, and more than one threadgroup.
    pub fn cases() -> Vec<Self> {
        let case = |rows, heads, head_dim| SplitQuery { rows, heads, head_dim };
        vec![case(1, 16, 256), case(3, 3, 33), case(7, 4, 64), case(1, 1, 5)]
    }
}

impl Contract for SplitQuery {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let q = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(q), Traffic::written(q)]
    }

    fn flops(&self) -> u64 {
        0
    }

    fn dispatch(&self) -> Option<Dispatch> {
        // A multiple of 16 bytes, and that number of units, whatever the type of activations.
        let whole = self.head_dim.is_multiple_of(8);
        let constants = split_query::Constants { whole };
        let params = split_query::Params {
            width: self.head_dim as u32,
            elements: (self.rows * self.heads * self.head_dim) as u32,
        };
        let units = if whole { self.rows * self.heads * self.head_dim / 4 } else { params.elements as usize };
        let grid = [units.div_ceil(256), 1, 1];
        Some(Dispatch::new(&split_query::TEXT, constants.words(), params.words(), grid, [256, 1, 1]))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for SplitQuery {
    fn gpu_cases() -> Vec<Self> {
        SplitQuery::cases()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{CaseBuilder, wide};
        let builder = CaseBuilder::new(*self, activation);
        let d = self.head_dim;
        let qg = builder.rounded(&random.values(self.rows * self.heads * 2 * d, 2.0));
        let want: Vec<f64> = qg.chunks(2 * d).flat_map(|head| wide(&head[..d])).collect();
        let error = vec![0.0; want.len()];
        builder.input(&qg).output(want, error).build()
    }
}
