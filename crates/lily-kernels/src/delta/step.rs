//! The whole of Gated DeltaNet between its projections, for the few rows of a decode step.

use super::{ConvSilu, DeltaPrep, DeltaScan, Scan, ScanInputs};
use crate::norm::GatedNorm;
use crate::{Activation, Contract, Operand, PlainType, Traffic};

/// [`ConvSilu`], [`ConvState`](super::ConvState), [`DeltaPrep`], [`DeltaScan`] and, if `gated`, the gated norm, in one launch; between
/// them everything stays f32.
///
/// A sequence's states are read at one place of their pools and written at another: threadgroups that share channels read
/// rows that one of them replaces, and nothing orders threadgroups within a launch. So `slot_state` and `slot_next` must
/// differ here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaStep {
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
    /// Taps of the convolution.
    pub taps: usize,
    /// Added to the mean of squares of a head of y.
    pub eps: f32,
    /// Whether the gated norm is in it: without, out is y, and z and norm are not read.
    pub gated: bool,
    /// How the filter is stored.
    pub conv: PlainType,
    /// How A_log is stored.
    pub a_log: PlainType,
    /// How dt_bias is stored.
    pub dt_bias: PlainType,
    /// How the norm's weights are stored.
    pub norm: PlainType,
}

/// What one sequence brings to a step, with n = rows, and the weights.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// `[n, channels]`, before the convolution.
    pub raw: &'a [f64],
    /// `[n, value_heads * value_dim]`.
    pub z: &'a [f64],
    /// `[n, value_heads]`.
    pub a: &'a [f64],
    /// `[n, value_heads]`.
    pub b: &'a [f64],
    /// `[channels, taps]`.
    pub conv: &'a [f64],
    /// `[value_heads]`.
    pub a_log: &'a [f64],
    /// `[value_heads]`.
    pub dt_bias: &'a [f64],
    /// `[value_dim]`.
    pub norm: &'a [f64],
}

/// States of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct StepState {
    /// `[taps - 1, channels]`, oldest first.
    pub conv: Vec<f64>,
    /// `[value_heads, value_dim, key_dim]`.
    pub delta: Vec<f64>,
}

impl DeltaStep {
    /// With n = slots * rows: raw f32 `[n, channels]`; z f32 `[n, value_heads * value_dim]`; a, b f32 `[n, value_heads]`; conv
    /// `[channels, taps]`; a_log, dt_bias `[value_heads]`; norm `[value_dim]`; out f32 `[n, value_heads * value_dim]`; a slot's
    /// conv_state f32 `[taps - 1, channels]` and state f32 `[value_heads, value_dim, key_dim]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("raw").act(),
        Operand::read("z").act(),
        Operand::read("a").act(),
        Operand::read("b").act(),
        Operand::read("conv").tensor(),
        Operand::read("a_log").tensor(),
        Operand::read("dt_bias").tensor(),
        Operand::read("norm").tensor(),
        Operand::write("out").act(),
        Operand::update("conv_state").per_slot(),
        Operand::update("state").per_slot(),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Its first part.
    fn conv_silu(&self) -> ConvSilu {
        let (slots, rows, channels) = (self.slots, self.rows, self.channels());
        ConvSilu { slots, rows, channels, taps: self.taps, weight: self.conv }
    }

    /// Its second part, for one sequence.
    fn prep(&self) -> DeltaPrep {
        let DeltaStep { rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias, .. } = *self;
        DeltaPrep { rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias }
    }

    /// Its third part.
    fn scan(&self) -> DeltaScan {
        let DeltaStep { slots, rows, key_heads, value_heads, key_dim, value_dim, .. } = *self;
        DeltaScan { slots, rows, key_heads, value_heads, key_dim, value_dim, method: Scan::Registers }
    }

    /// Its last part, for one sequence.
    fn gated_norm(&self) -> GatedNorm {
        let (heads, width) = (self.value_heads, self.value_dim);
        GatedNorm { rows: self.rows, heads, width, eps: self.eps, weight: self.norm }
    }

    /// The definition, in f64, for one sequence: out, and the states in place.
    pub fn reference(&self, x: StepInputs<'_>, state: &mut StepState) -> Vec<f64> {
        let conv = self.conv_silu().reference(x.raw, x.conv, &state.conv);
        let kept = [&state.conv, x.raw].concat();
        state.conv = kept[self.rows * self.channels()..].to_vec();
        let prepared = self.prep().reference(&conv, x.a, x.b, x.a_log, x.dt_bias);
        let inputs = ScanInputs {
            q: &prepared.q,
            k: &prepared.k,
            decay: &prepared.decay,
            beta: &prepared.beta,
            conv: &conv,
        };
        let y = self.scan().reference(inputs, &mut state.delta);
        if self.gated { self.gated_norm().reference(&y, x.z, x.norm) } else { y }
    }

    /// One row and several, with and without the gate; widths of one vector and more, and of none.
    pub fn cases() -> Vec<Self> {
        Vec::new()
    }
}

impl Contract for DeltaStep {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, n) = (activation.bytes(), self.slots * self.rows);
        let width = size * n * self.value_heads * self.value_dim;
        let gates = Traffic::read(size * n * self.value_heads);
        let if_gated = |bytes: usize| Traffic::read(if self.gated { bytes } else { 0 });
        vec![
            Traffic::read(size * n * self.channels()),
            if_gated(width),
            gates,
            gates,
            Traffic::read(self.channels() * self.taps * self.conv.bytes()),
            Traffic::read(self.value_heads * self.a_log.bytes()),
            Traffic::read(self.value_heads * self.dt_bias.bytes()),
            if_gated(self.value_dim * self.norm.bytes()),
            Traffic::written(width),
            Traffic::updated(4 * self.slots * (self.taps - 1) * self.channels()),
            Traffic::updated(4 * self.slots * self.value_heads * self.value_dim * self.key_dim),
        ]
    }

    fn flops(&self) -> u64 {
        let a_sequence = self.prep().flops() + if self.gated { self.gated_norm().flops() } else { 0 };
        self.conv_silu().flops() + self.slots as u64 * a_sequence + self.scan().flops()
    }
}
