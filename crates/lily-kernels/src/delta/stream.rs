//! The whole of Gated DeltaNet between its projections but for the gated norm, for the many rows of a prompt.

use super::{L2_EPS, Scan};
use crate::bindings::delta_stream;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// Tokens whose q, k and v stand in threadgroup memory: 16 and heads of 128 take 20 KiB.
const TILE: usize = 16;

/// [`ConvSilu`](super::ConvSilu), [`ConvState`](super::ConvState), [`DeltaPrep`](super::DeltaPrep) and
/// [`DeltaScan`](super::DeltaScan) in one launch: what lies between them never goes through device memory.
///
/// A sequence's states are read at one place of their pools and written at another (`slot_state` and `slot_next` differ), as
/// in [`DeltaStep`](super::DeltaStep). For GPUs only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaStream {
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
    /// How the filter is stored.
    pub conv: PlainType,
    /// How A_log is stored.
    pub a_log: PlainType,
    /// How dt_bias is stored.
    pub dt_bias: PlainType,
    /// How the recurrence is computed: [`Scan::Registers`] or [`Scan::Chunked`].
    pub scan: Scan,
}

impl DeltaStream {
    /// With n = slots * rows: raw act `[n, channels]`; a, b act `[n, value_heads]`; conv `[channels, taps]`; a_log, dt_bias
    /// `[value_heads]`; y act `[n, value_heads * value_dim]`; a slot's conv_state f32 `[taps - 1, channels]` and state f32
    /// `[value_heads, value_dim, key_dim]`.
    pub const OPERANDS: &'static [Operand] = &[
        Operand::read("raw").fine(),
        Operand::read("a").fine(),
        Operand::read("b").fine(),
        Operand::read("conv").tensor(),
        Operand::read("a_log").tensor(),
        Operand::read("dt_bias").tensor(),
        Operand::write("y").fine(),
        Operand::update("conv_state").per_slot(),
        Operand::update("state").per_slot(),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// One token and many, around tiles of 16 and 32; several sequences; widths that fill no vector.
    pub fn cases() -> Vec<Self> {
        let case = |slots, rows, key_heads, value_heads, key_dim, value_dim, taps, scan| DeltaStream {
            slots,
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
            conv: PlainType::Bf16,
            a_log: PlainType::F32,
            dt_bias: PlainType::Bf16,
            scan,
        };
        let mut cases = Vec::new();
        for scan in [Scan::Registers, Scan::Chunked] {
            for rows in [1, 2, 15, 16, 17, 31, 32, 33, 70] {
                cases.push(case(1, rows, 1, 2, 128, 128, 4, scan));
            }
            cases.push(case(2, 37, 2, 4, 32, 64, 4, scan));
            cases.push(case(1, 19, 1, 3, 37, 5, 2, scan));
            cases.push(case(3, 5, 2, 2, 16, 33, 5, scan));
        }
        cases
    }
}

impl Contract for DeltaStream {
    fn slots(&self) -> usize {
        self.slots
    }

    fn traffic(&self, activation: Activation) -> Vec<Traffic> {
        let (size, n) = (activation.bytes(), self.slots * self.rows);
        let gates = Traffic::read(size * n * self.value_heads);
        vec![
            Traffic::read(size * n * self.channels()),
            gates,
            gates,
            Traffic::read(self.channels() * self.taps * self.conv.bytes()),
            Traffic::read(self.value_heads * self.a_log.bytes()),
            Traffic::read(self.value_heads * self.dt_bias.bytes()),
            Traffic::written(size * n * self.value_heads * self.value_dim),
            Traffic::updated(4 * self.slots * (self.taps - 1) * self.channels()),
            Traffic::updated(4 * self.slots * self.value_heads * self.value_dim * self.key_dim),
        ]
    }

    fn flops(&self) -> u64 {
        let n = self.slots * self.rows;
        let state = 7 * self.value_heads * self.value_dim * self.key_dim;
        (n * (state + (2 * self.taps + 8) * self.channels())) as u64
    }

    fn dispatch(&self) -> Option<Dispatch> {
        if self.taps > super::MOST_TAPS || self.key_dim > super::MOST_KEY_DIM || self.scan != Scan::Registers
        {
            return None;
        }
        let steps = self.key_dim.div_ceil(16);
        let constants = delta_stream::Constants {
            taps: self.taps as u32,
            steps: steps as u32,
            whole: self.key_dim.is_multiple_of(16),
            conv_is_f32: self.conv == PlainType::F32,
            a_log_is_f32: self.a_log == PlainType::F32,
            dt_bias_is_f32: self.dt_bias == PlainType::F32,
        };
        // Eight rows a simdgroup, at most 64 a threadgroup: every threadgroup makes q and k again, and a head of 128 rows is
        // two of them. Half as many where wide key heads fill the registers.
        let simds = self.value_dim.div_ceil(8).min(if steps > 8 { 4 } else { 8 });
        let tile = if steps > 8 { 8 } else { TILE };
        let params = delta_stream::Params {
            rows: self.rows as u32,
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            tile: tile as u32,
            l2_eps: L2_EPS,
        };
        let grid = [self.value_dim.div_ceil(8 * simds), self.value_heads, self.slots];
        let shared = 4 * tile * (2 * 16 * steps + 8 * simds + 5);
        let threads = [32 * simds, 1, 1];
        let (constants, params) = (constants.words(), params.words());
        let mut dispatch = Dispatch::new(&delta_stream::TEXT, constants, params, grid, threads);
        dispatch.threadgroup_bytes = vec![shared.next_multiple_of(16)];
        Some(dispatch)
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for DeltaStream {
    fn gpu_cases() -> Vec<Self> {
        DeltaStream::cases().into_iter().filter(|k| k.scan == Scan::Registers).collect()
    }

    /// The step without its gate, whose bounds hold for any number of tokens.
    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        let DeltaStream { slots, rows, key_heads, value_heads, key_dim, value_dim, taps, .. } = *self;
        let DeltaStream { conv, a_log, dt_bias, .. } = *self;
        let step = super::DeltaStep {
            slots,
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            taps,
            eps: 1e-6,
            gated: false,
            conv,
            a_log,
            dt_bias,
            norm: PlainType::Bf16,
        };
        let mut case = step.case(activation, random);
        let wanted = |o: &Operand| o.name != "z" && o.name != "norm";
        let mut names = super::DeltaStep::OPERANDS.iter();
        case.operands.retain(|_| names.next().is_some_and(wanted));
        crate::testing::Case { kernel: (*self).into(), ..case }
    }
}
