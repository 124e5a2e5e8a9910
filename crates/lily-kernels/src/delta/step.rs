//! The whole of Gated DeltaNet between its projections, for the few rows of a decode step.

use super::{
    ConvSilu, DeltaPrep, DeltaScan, L2_EPS, MOST_KEY_DIM, MOST_TAPS, MOST_VALUE_DIM, Scan, ScanInputs,
};
use crate::bindings::delta_step;
use crate::norm::GatedNorm;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// Tokens between two visits of the state in delta_step.metal.
const BLOCK: usize = 4;

/// [`ConvSilu`], [`ConvState`](super::ConvState), [`DeltaPrep`], [`DeltaScan`] and, if `gated`, the gated norm, in one launch; between
/// them everything stays f32.
///
/// A sequence's states are read at one place of their pools and written at another: threadgroups that share channels read
/// rows that one of them replaces, and nothing orders threadgroups within a launch. So `slot_state` and `slot_next` must
/// differ here. Of a sequence that is done, out is 0.
///
/// GPUs run up to eight taps, key heads of up to 256, and heads of y of up to 1,024 if `gated`.
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
        Operand::read("raw").fine(),
        Operand::read("z").fine(),
        Operand::read("a").fine(),
        Operand::read("b").fine(),
        Operand::read("conv").tensor(),
        Operand::read("a_log").tensor(),
        Operand::read("dt_bias").tensor(),
        Operand::read("norm").tensor(),
        Operand::write("out").fine(),
        Operand::update("conv_state").per_slot(),
        Operand::update("state").per_slot(),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Its first part.
    pub(super) fn conv_silu(&self) -> ConvSilu {
        let (slots, rows, channels) = (self.slots, self.rows, self.channels());
        ConvSilu { slots, rows, channels, taps: self.taps, weight: self.conv }
    }

    /// Its second part, for one sequence.
    pub(super) fn prep(&self) -> DeltaPrep {
        let DeltaStep { rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias, .. } = *self;
        DeltaPrep { rows, key_heads, value_heads, key_dim, value_dim, a_log, dt_bias }
    }

    /// Its third part.
    pub(super) fn scan(&self) -> DeltaScan {
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

    /// One row and several, with and without the gate; key heads that are no whole sixteens, more rows of the state than a threadgroup
    /// takes at once, more tokens than a block, and sizes of the model.
    pub fn cases() -> Vec<Self> {
        let case =
            |(slots, rows), (key_heads, value_heads), (key_dim, value_dim), taps, eps, gated| DeltaStep {
                slots,
                rows,
                key_heads,
                value_heads,
                key_dim,
                value_dim,
                taps,
                eps,
                gated,
                conv: PlainType::Bf16,
                a_log: PlainType::F32,
                dt_bias: PlainType::Bf16,
                norm: PlainType::Bf16,
            };
        let mut all = Vec::new();
        for gated in [true, false] {
            all.extend([
                case((1, 1), (2, 4), (128, 128), 4, 1e-6, gated),
                case((1, 4), (1, 2), (128, 128), 4, 1e-6, gated),
                case((2, 3), (2, 2), (64, 40), 4, 0.2, gated),
                case((3, 2), (1, 3), (32, 31), 4, 1e-6, gated),
                case((2, 1), (2, 2), (37, 5), 3, 0.2, gated),
                case((1, 3), (3, 3), (5, 1), 2, 1e-6, gated),
                case((1, 9), (1, 2), (48, 50), 4, 1e-6, gated),
                case((3, 5), (2, 2), (20, 16), 7, 1e-6, gated),
                case((1, 2), (1, 1), (256, 200), 4, 1e-6, gated),
                case((1, 1), (16, 32), (128, 128), 4, 1e-6, gated),
            ]);
        }
        for k in all.iter_mut().step_by(3) {
            (k.conv, k.a_log, k.dt_bias, k.norm) =
                (PlainType::F32, PlainType::Bf16, PlainType::F32, PlainType::F32);
        }
        all
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
        let state = 4 * self.slots * self.value_heads * self.value_dim * self.key_dim;
        // Behind the first tokens the state is read where they wrote it.
        let again = if self.rows > BLOCK { state } else { 0 };
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
            Traffic { read: (state + again) as u64, written: state as u64 },
        ]
    }

    fn flops(&self) -> u64 {
        let a_sequence = self.prep().flops() + if self.gated { self.gated_norm().flops() } else { 0 };
        self.conv_silu().flops() + self.slots as u64 * a_sequence + self.scan().flops()
    }

    fn dispatch(&self) -> Option<Dispatch> {
        if self.taps > MOST_TAPS
            || self.key_dim > MOST_KEY_DIM
            || self.gated && self.value_dim > MOST_VALUE_DIM
        {
            return None;
        }
        let steps = self.key_dim.div_ceil(16);
        let constants = delta_step::Constants {
            gated: self.gated,
            taps: self.taps as u32,
            steps: steps as u32,
            whole: self.key_dim.is_multiple_of(16),
            conv_is_f32: self.conv == PlainType::F32,
            a_log_is_f32: self.a_log == PlainType::F32,
            dt_bias_is_f32: self.dt_bias == PlainType::F32,
            norm_is_f32: self.norm == PlainType::F32,
        };
        // A simdgroup has eight rows of the state. The norm needs a head in one threadgroup, 128 rows of it at a time (64 where
        // wide key heads fill the registers); without it threadgroups of 32 rows spread a single sequence over more of the
        // GPU.
        let group_rows = if self.gated { self.value_dim } else { 32 };
        let most = if steps > 8 { 256 } else { 512 };
        let threads = if self.gated { (self.value_dim.div_ceil(8) * 32).clamp(128, most) } else { 128 };
        let params = delta_step::Params {
            rows: self.rows as u32,
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            group_rows: group_rows as u32,
            l2_eps: L2_EPS,
            eps: self.eps,
        };
        let grid = [self.value_dim.div_ceil(group_rows), self.value_heads, self.slots];
        let shared = 4 * self.rows.min(BLOCK) * (2 * 16 * steps + group_rows.next_multiple_of(4));
        let mut dispatch =
            Dispatch::new(&delta_step::TEXT, constants.words(), params.words(), grid, [threads, 1, 1]);
        dispatch.threadgroup_bytes = vec![shared.next_multiple_of(16)];
        Some(dispatch)
    }
}
