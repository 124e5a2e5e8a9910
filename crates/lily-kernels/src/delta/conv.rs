//! The causal depthwise convolution over the last tokens, and its state.

use crate::bindings::{conv_silu, conv_state};
use crate::quant::silu;
use crate::{Activation, Contract, Dispatch, Operand, PlainType, Traffic};

/// Threads of a threadgroup: of few channels there are few.
const THREADS: usize = 64;

/// Rows of a thread of conv_silu.metal.
const RUN: usize = 8;

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
        Operand::read("raw").fine(),
        Operand::read("w").tensor(),
        Operand::write("out").fine(),
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
        &[Operand::read("raw").fine(), Operand::update("state").per_slot()];

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

    fn dispatch(&self) -> Option<Dispatch> {
        let fours = self.channels.is_multiple_of(4) && self.taps <= 4;
        let constants = conv_silu::Constants { weight_is_f32: self.weight == PlainType::F32, fours };
        let (rows, channels, taps) = (self.rows as u32, self.channels as u32, self.taps as u32);
        let params = conv_silu::Params { rows, channels, taps };
        let threads = if fours { self.channels / 4 } else { self.channels };
        let grid = [threads.div_ceil(THREADS), self.rows.div_ceil(RUN), self.slots];
        Some(Dispatch::new(&conv_silu::TEXT, constants.words(), params.words(), grid, [THREADS, 1, 1]))
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

    fn dispatch(&self) -> Option<Dispatch> {
        let (rows, channels, taps) = (self.rows as u32, self.channels as u32, self.taps as u32);
        let params = conv_state::Params { rows, channels, taps };
        let grid = [self.channels.div_ceil(THREADS), self.slots, 1];
        Some(Dispatch::new(&conv_state::TEXT, Vec::new(), params.words(), grid, [THREADS, 1, 1]))
    }
}

/// What a value of the convolution may be off by: its sum, through SiLU, whose slope is at most 1.1, and the functions in it.
#[cfg(feature = "testing")]
pub(super) fn conv_error(b: crate::testing::Bounds, taps: usize, size: f64, value: f64) -> f64 {
    1.1 * b.sum(taps, 1) * size + 2.0 * b.function() * value.abs()
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for ConvSilu {
    fn gpu_cases() -> Vec<Self> {
        let case = |slots, rows, channels, taps, weight| ConvSilu { slots, rows, channels, taps, weight };
        let mut cases = ConvSilu::cases();
        cases.extend([
            case(1, 1, 8192, 4, PlainType::Bf16),
            case(1, RUN, 64, 4, PlainType::Bf16),
            case(2, RUN + 1, 260, 3, PlainType::Bf16),
            case(1, 3 * RUN + 2, 31, 4, PlainType::F32),
            case(1, 2, 12, 1, PlainType::F32),
            case(3, 2, 8, 5, PlainType::Bf16),
        ]);
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{Bounds, CaseBuilder, plain, wide};
        let (b, builder) = (Bounds::new(activation), CaseBuilder::new(*self, activation));
        let (c, k) = (self.channels, self.taps);
        let raw = builder.rounded(&random.values(self.slots * self.rows * c, 2.0));
        let (w, w_values) = plain(random, self.weight, c * k, 0.1, 0.6);
        let states: Vec<Vec<f32>> = (0..self.slots).map(|_| random.values((k - 1) * c, 2.0)).collect();
        let pool = super::pool::Pool::new(self.slots, true, random);
        let (mut want, mut error) = (Vec::new(), Vec::new());
        for (raw, state) in raw.chunks(self.rows * c).zip(&states) {
            let all = wide(&[state, raw].concat());
            for (i, value) in self.reference(&wide(raw), &w_values, &wide(state)).into_iter().enumerate() {
                let (t, i) = (i / c, i % c);
                let size: f64 = (0..k).map(|j| (w_values[i * k + j] * all[(t + j) * c + i]).abs()).sum();
                want.push(value);
                error.push(b.fine().store(value, conv_error(b, k, size, value)));
            }
        }
        let state = if k == 1 { Vec::new() } else { pool.before(&states) };
        builder.input(&raw).tensor(&w).output(want, error).input(&state).slots(&pool.table).build()
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for ConvState {
    fn gpu_cases() -> Vec<Self> {
        let case =
            |c: ConvSilu| ConvState { slots: c.slots, rows: c.rows, channels: c.channels, taps: c.taps };
        let all = <ConvSilu as crate::testing::GpuCases>::gpu_cases().into_iter().map(case);
        all.filter(|c| c.taps > 1).collect()
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use crate::testing::{CaseBuilder, wide};
        let builder = CaseBuilder::new(*self, activation);
        let len = (self.taps - 1) * self.channels;
        let raw = builder.rounded(&random.values(self.slots * self.rows * self.channels, 2.0));
        let states: Vec<Vec<f32>> = (0..self.slots).map(|_| random.values(len, 2.0)).collect();
        let pool = super::pool::Pool::new(self.slots, true, random);
        let rows = raw.chunks(self.rows * self.channels).zip(&states);
        let after: Vec<Vec<f64>> = rows.map(|(raw, state)| wide(&self.reference(raw, state))).collect();
        let want = pool.after(&after);
        let exact = vec![0.0; want.len()];
        let case = builder.input(&raw).update(&pool.before(&states), want, exact).slots(&pool.table);
        // A sequence that is done writes less.
        if (0..self.slots).any(|slot| pool.done(slot)) { case.touches_less().build() } else { case.build() }
    }
}
