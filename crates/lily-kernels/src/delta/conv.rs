//! The causal depthwise convolution over the last tokens, and its state.

use crate::quant::silu;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// out[t, c] = SiLU(sum over j of w[c, j] * raw[t - (taps - 1) + j, c]), where rows before the first come from the
/// sequence's state (oldest first).
///
/// The state is only read: [`ConvState`] moves it on afterwards, because rows of one launch are computed in any order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvSilu {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// q, k and v channels.
    pub channels: usize,
    /// Taps of the filter.
    pub taps: usize,
    /// How w is stored.
    pub weight: PlainType,
}

impl ConvSilu {
    /// raw f32 `[slots * rows, channels]`; w `[channels, taps]`; out f32 `[slots * rows, channels]`; a slot's state f32
    /// `[taps - 1, channels]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("raw").act(),
        Operand::read("w").tensor(),
        Operand::write("out").act(),
        Operand::read("state").per_slot(),
    ];

    /// The definition, in f64, for one sequence.
    pub fn reference(&self, raw: &[f64], w: &[f64], state: &[f64]) -> Vec<f64> {
        let (c, k) = (self.channels, self.taps);
        let all: Vec<f64> = state.iter().chain(raw).copied().collect();
        let tap = |t: usize, i: usize| (0..k).map(|j| w[i * k + j] * all[(t + j) * c + i]).sum::<f64>();
        (0..self.rows).flat_map(|t| (0..c).map(move |i| (t, i))).map(|(t, i)| silu(tap(t, i))).collect()
    }

    /// Fewer rows than taps, and more; channels that fill no vector, and both sides of a block of 512.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, channels, taps, weight| ConvSilu { slots, rows, channels, taps, weight };
        vec![
            case(1, 1, 48, 4, PlainType::Bf16),
            case(3, 1, 37, 4, PlainType::Bf16),
            case(1, 2, 64, 4, PlainType::F32),
            case(1, 3, 5, 4, PlainType::Bf16),
            case(1, 9, 70, 4, PlainType::Bf16),
            case(2, 5, 33, 2, PlainType::F32),
            case(1, 4, 511, 3, PlainType::Bf16),
            case(3, 1, 512, 4, PlainType::F32),
            case(1, 6, 513, 4, PlainType::Bf16),
            case(2, 2, 1_100, 7, PlainType::Bf16),
        ]
    }
}

/// The state after a launch: the last taps - 1 raw rows, oldest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvState {
    /// Sequences.
    pub slots: usize,
    /// Tokens of each sequence.
    pub rows: usize,
    /// q, k and v channels.
    pub channels: usize,
    /// Taps of the filter.
    pub taps: usize,
}

impl ConvState {
    /// raw f32 `[slots * rows, channels]`; a slot's state f32 `[taps - 1, channels]`.
    pub const OPERANDS: &'static [Operand] =
        &[Operand::read("raw").act(), Operand::update("state").per_slot()];

    /// The definition, for one sequence: exact copies, so f32.
    pub fn reference(&self, raw: &[f32], state: &[f32]) -> Vec<f32> {
        let all: Vec<f32> = state.iter().chain(raw).copied().collect();
        all[all.len() - (self.taps - 1) * self.channels..].to_vec()
    }

    /// The shapes of [`ConvSilu`].
    pub fn cases() -> Vec<Self> {
        let case =
            |c: ConvSilu| ConvState { slots: c.slots, rows: c.rows, channels: c.channels, taps: c.taps };
        ConvSilu::cases().into_iter().map(case).collect()
    }
}

impl Contract for ConvSilu {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let bytes = activation.bytes() * self.slots * self.rows * self.channels;
        vec![
            Traffic::read(bytes),
            Traffic::read(self.channels * self.taps * self.weight.bytes()),
            Traffic::written(bytes),
            Traffic::read(4 * self.slots * (self.taps - 1) * self.channels),
        ]
    }

    fn flops(&self) -> u64 {
        ((2 * self.taps + 4) * self.slots * self.rows * self.channels) as u64
    }
}

impl Contract for ConvState {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let kept = self.taps - 1;
        let from_rows = kept.min(self.rows);
        let state = Traffic {
            read: (4 * self.slots * (kept - from_rows) * self.channels) as u64,
            written: (4 * self.slots * kept * self.channels) as u64,
        };
        vec![Traffic::read(activation.bytes() * self.slots * from_rows * self.channels), state]
    }

    fn flops(&self) -> u64 {
        0
    }
}
