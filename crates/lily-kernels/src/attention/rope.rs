//! Rotary position embedding.

use crate::{Activation, Contract, Operand, Traffic};

/// The inverse frequency of pair `j`: theta^(-2j / rotary_dim), rounded to f32.
pub(crate) fn frequency(theta: f64, rotary_dim: usize, j: usize) -> f32 {
    theta.powf(-2.0 * j as f64 / rotary_dim as f64) as f32
}

/// Turns the first `rotary_dim` elements of one head, in f64.
pub(crate) fn turn(x: &mut [f64], position: u32, rotary_dim: usize, theta: f64) {
    let half = rotary_dim / 2;
    for j in 0..half {
        let angle = f64::from(position as f32 * frequency(theta, rotary_dim, j));
        let (a, b) = (x[j], x[j + half]);
        x[j] = a * angle.cos() - b * angle.sin();
        x[j + half] = b * angle.cos() + a * angle.sin();
    }
}

/// Each head's first `rotary_dim` elements turned by the row's position, as [`super::AttentionPrep`] turns them; the others
/// copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Rows.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading dimensions that are turned; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub rope_theta: f64,
}

impl Rope {
    /// x act `[rows, heads, head_dim]`; positions u32 `[rows]`; out act `[rows, heads, head_dim]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("x").act(), Operand::read("positions").u32(), Operand::write("out").act()];

    /// The definition, in f64.
    pub fn reference(&self, x: &[f64], positions: &[u32]) -> Vec<f64> {
        let mut out = x.to_vec();
        for (i, head) in out.chunks_mut(self.head_dim).enumerate() {
            turn(head, positions[i / self.heads], self.rotary_dim, self.rope_theta);
        }
        out
    }

    /// Rotary parts of every share, and odd widths.
    pub fn cases() -> Vec<Self> {
        let case =
            |rows, heads, head_dim, rotary_dim| Rope { rows, heads, head_dim, rotary_dim, rope_theta: 1e7 };
        vec![
            case(1, 16, 256, 64),
            case(9, 2, 40, 40),
            case(5, 2, 33, 2),
            case(3, 1, 256, 256),
            case(2, 3, 6, 4),
        ]
    }
}

impl Contract for Rope {
    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let x = activation.bytes() * self.rows * self.heads * self.head_dim;
        vec![Traffic::read(x), Traffic::read(4 * self.rows), Traffic::written(x)]
    }

    fn flops(&self) -> u64 {
        3 * (self.rows * self.heads * self.rotary_dim) as u64
    }
}
