//! The recurrence of Gated DeltaNet.

use crate::{Activation, Contract, Operand, Traffic};

/// For each sequence and value head h (which uses key head h / (value_heads / key_heads)), token after token, with the
/// state S `[value_dim, key_dim]`:
///
/// S <- g S; delta = beta (v - S k^); S <- S + delta k^T; y = S q^.
///
/// With kappa = k^ . q^ one read of S suffices: y = g (S q^) + delta kappa and S k^ = g (S_old k^).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaScan {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// How a GPU does it; the CPU has one way of its own.
    pub method: Scan,
}

/// The ways to run [`DeltaScan`] on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Token after token, the state in registers from the first to the last.
    Registers,
    /// Token after token, the state in device memory between them.
    Memory,
    /// A chunk of tokens at a time, as products of matrices.
    Chunked,
}

/// What one sequence brings to a scan, with n = rows.
#[derive(Clone, Copy, Debug)]
pub struct ScanInputs<'a> {
    /// `[n, key_heads, key_dim]`.
    pub q: &'a [f64],
    /// `[n, key_heads, key_dim]`.
    pub k: &'a [f64],
    /// `[n, value_heads]`.
    pub decay: &'a [f64],
    /// `[n, value_heads]`.
    pub beta: &'a [f64],
    /// Convolved channels, of which v are the last `[n, channels]`.
    pub conv: &'a [f64],
}

impl DeltaScan {
    /// q, k f32 `[slots * rows, key_heads, key_dim]`; kappa f32 `[slots * rows, key_heads]`; decay, beta f32 [slots * rows,
    /// value_heads]; conv f32 `[slots * rows, channels]`; y f32 `[slots * rows, value_heads, value_dim]`; a slot's state f32
    /// `[value_heads, value_dim, key_dim]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("q").act(),
        Operand::read("k").act(),
        Operand::read("kappa"),
        Operand::read("decay"),
        Operand::read("beta"),
        Operand::read("conv").act(),
        Operand::write("y").act(),
        Operand::update("state").per_slot(),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The definition, in f64, for one sequence: y, and the state in place.
    pub fn reference(&self, x: ScanInputs<'_>, state: &mut [f64]) -> Vec<f64> {
        let (dk, dv) = (self.key_dim, self.value_dim);
        let mut y = vec![0.0; self.rows * self.value_heads * dv];
        for t in 0..self.rows {
            let v_row = &x.conv[t * self.channels() + 2 * self.key_heads * dk..][..self.value_heads * dv];
            for h in 0..self.value_heads {
                let head = h / (self.value_heads / self.key_heads);
                let q = &x.q[(t * self.key_heads + head) * dk..][..dk];
                let k = &x.k[(t * self.key_heads + head) * dk..][..dk];
                let (g, beta) = (x.decay[t * self.value_heads + h], x.beta[t * self.value_heads + h]);
                for i in 0..dv {
                    let s = &mut state[(h * dv + i) * dk..][..dk];
                    s.iter_mut().for_each(|s| *s *= g);
                    let delta = beta * (v_row[h * dv + i] - s.iter().zip(k).map(|(s, k)| s * k).sum::<f64>());
                    s.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
                    y[(t * self.value_heads + h) * dv + i] = s.iter().zip(q).map(|(s, q)| s * q).sum();
                }
            }
        }
        y
    }

    /// One token and many, several sequences; key widths of 1, 2, 4, 8 and 16 vectors of 4 to 16 lanes, and of none;
    /// value widths on both sides of a block of 32 rows.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, key_heads, value_heads, key_dim, value_dim| DeltaScan {
            slots,
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            method: Scan::Registers,
        };
        vec![
            case(1, 1, 2, 4, 128, 128),
            case(3, 1, 2, 4, 32, 64),
            case(1, 65, 1, 2, 128, 16),
            case(2, 7, 2, 2, 37, 5),
            case(1, 3, 1, 1, 256, 33),
            case(1, 9, 1, 3, 64, 31),
            case(2, 5, 1, 1, 16, 70),
            case(1, 6, 2, 4, 8, 32),
            case(1, 4, 1, 2, 96, 34),
            case(3, 1, 3, 3, 5, 1),
        ]
    }
}

impl Contract for DeltaScan {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, n) = (activation.bytes(), self.slots * self.rows);
        let (keys, values) = (n * self.key_heads, n * self.value_heads);
        let width = size * values * self.value_dim;
        vec![
            Traffic::read(size * keys * self.key_dim),
            Traffic::read(size * keys * self.key_dim),
            Traffic::read(4 * keys),
            Traffic::read(4 * values),
            Traffic::read(4 * values),
            Traffic::read(width),
            Traffic::written(width),
            Traffic::updated(4 * self.slots * self.value_heads * self.value_dim * self.key_dim),
        ]
    }

    fn flops(&self) -> u64 {
        (7 * self.slots * self.rows * self.value_heads * self.value_dim * self.key_dim) as u64
    }
}
