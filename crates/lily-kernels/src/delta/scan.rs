//! The recurrence of Gated DeltaNet.

use crate::bindings::{delta_scan_chunked, delta_scan_memory, delta_scan_registers};
use crate::{Activation, Contract, Dispatch, Operand, Traffic};

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

/// The ways to run [`DeltaScan`] on a GPU. Of a sequence that is done, y is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Token after token, the state in registers from the first to the last.
    Registers,
    /// Token after token, the state in device memory between them.
    Memory,
    /// Sixteen tokens at a time, as products of matrices. Launches that are cut at multiples of sixteen tokens give the bits of
    /// one launch. Key heads of no multiple of 32 or of more than 128 are scanned in registers.
    Chunked,
}

/// The widest key head whose state fits in tiles of 32 columns.
const MOST_TILES: usize = 4;

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
        Operand::read("q").fine(),
        Operand::read("k").fine(),
        Operand::read("kappa"),
        Operand::read("decay"),
        Operand::read("beta"),
        Operand::read("conv").fine(),
        Operand::write("y").fine(),
        Operand::update("state").per_slot(),
    ];

    /// q, k and v channels.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// How a GPU runs it: in the way asked for where the sizes allow, else in a more general one.
    fn way(&self) -> Scan {
        let tiles = self.key_dim.is_multiple_of(32) && self.key_dim <= MOST_TILES * 32;
        match self.method {
            _ if self.key_dim > super::MOST_KEY_DIM => Scan::Memory,
            Scan::Chunked if !tiles => Scan::Registers,
            method => method,
        }
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
        let state = 4 * self.slots * self.value_heads * self.value_dim * self.key_dim;
        // From the second token on the state is read where the first one wrote it.
        let again = if self.way() == Scan::Memory && self.rows > 1 { state } else { 0 };
        vec![
            Traffic::read(size * keys * self.key_dim),
            Traffic::read(size * keys * self.key_dim),
            // A chunk makes its own products of q and k.
            Traffic::read(if self.way() == Scan::Chunked { 0 } else { 4 * keys }),
            Traffic::read(4 * values),
            Traffic::read(4 * values),
            Traffic::read(width),
            Traffic::written(width),
            Traffic { read: (state + again) as u64, written: state as u64 },
        ]
    }

    fn flops(&self) -> u64 {
        crate::product(&[7, self.slots, self.rows, self.value_heads, self.value_dim, self.key_dim])
    }

    fn dispatch(&self) -> Option<Dispatch> {
        let rows = self.rows as u32;
        let (key_heads, value_heads) = (self.key_heads as u32, self.value_heads as u32);
        let (key_dim, value_dim) = (self.key_dim as u32, self.value_dim as u32);
        let whole = self.key_dim.is_multiple_of(16);
        // Two simdgroups, eight rows of the state each: nothing is shared, and many threadgroups fill a GPU evenly.
        let (mut grid, mut threads) =
            ([self.value_dim.div_ceil(16), self.value_heads, self.slots], [64, 1, 1]);
        let (text, constants, params) = match self.way() {
            Scan::Registers => (
                &delta_scan_registers::TEXT,
                delta_scan_registers::Constants { steps: self.key_dim.div_ceil(16) as u32, whole }.words(),
                delta_scan_registers::Params { rows, key_heads, value_heads, key_dim, value_dim }.words(),
            ),
            Scan::Memory => (
                &delta_scan_memory::TEXT,
                delta_scan_memory::Constants { whole }.words(),
                delta_scan_memory::Params { rows, key_heads, value_heads, key_dim, value_dim }.words(),
            ),
            Scan::Chunked => {
                // Two simdgroups of 16 rows, and one that prepares chunks for both.
                (grid[0], threads[0]) = (self.value_dim.div_ceil(32), 96);
                (
                    &delta_scan_chunked::TEXT,
                    delta_scan_chunked::Constants { tiles: (self.key_dim / 32) as u32 }.words(),
                    delta_scan_chunked::Params { rows, key_heads, value_heads, key_dim, value_dim }.words(),
                )
            }
        };
        Some(Dispatch::new(text, constants, params, grid, threads))
    }
}

#[cfg(feature = "testing")]
impl crate::testing::GpuCases for DeltaScan {
    fn gpu_cases() -> Vec<Self> {
        let case = |slots, rows, key_heads, value_heads, key_dim, value_dim| DeltaScan {
            slots,
            rows,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            method: Scan::Registers,
        };
        let mut shapes = DeltaScan::cases();
        shapes.extend([
            case(1, 3, 16, 32, 128, 128),
            case(2, 4, 2, 4, 128, 40),
            case(3, 17, 1, 2, 20, 9),
            case(1, 2, 1, 1, 255, 8),
            case(1, 33, 2, 2, 64, 17),
            case(2, 3, 1, 1, 300, 10),
        ]);
        let with = |method| shapes.iter().map(move |shape| DeltaScan { method, ..*shape });
        let mut cases: Vec<Self> = [Scan::Registers, Scan::Memory].into_iter().flat_map(with).collect();
        // Chunks of 16 tokens: whole ones, the last one short, one token more; all widths of tiles; rows of the state that fill a
        // threadgroup, a simdgroup, neither. The last has no tiles.
        shapes = vec![
            case(1, 1, 1, 2, 32, 32),
            case(1, 15, 1, 1, 64, 40),
            case(2, 16, 2, 4, 96, 16),
            case(3, 17, 1, 2, 128, 33),
            case(1, 33, 2, 2, 128, 128),
            case(1, 100, 1, 2, 128, 16),
            case(2, 64, 1, 3, 32, 5),
            case(1, 48, 1, 2, 64, 31),
            case(1, 5, 16, 32, 128, 128),
            case(1, 3, 1, 1, 40, 8),
        ];
        cases.extend(shapes.iter().map(|shape| DeltaScan { method: Scan::Chunked, ..*shape }));
        cases
    }

    fn case(&self, activation: Activation, random: &mut crate::random::Random) -> crate::testing::Case {
        use super::chunks::chunked_recurrence;
        use super::recurrence::{InputErrors, recurrence, scan_inputs};
        use crate::testing::{Bounds, CaseBuilder, wide};
        let b = Bounds::new(activation);
        let x = scan_inputs(self, activation, random);
        let len = self.value_heads * self.value_dim * self.key_dim;
        let states: Vec<Vec<f32>> = (0..self.slots).map(|_| random.values(len, 0.5)).collect();
        let pool = super::pool::Pool::new(self.slots, true, random);
        let all = [&x.q, &x.k, &x.decay, &x.beta, &x.conv].map(|values| wide(values));
        let (mut y, mut y_error, mut after, mut error) = (vec![], vec![], vec![], vec![]);
        for (slot, state) in states.iter().enumerate() {
            let part = |i: usize, width: usize| &all[i][slot * self.rows * width..][..self.rows * width];
            let keys = self.key_heads * self.key_dim;
            let inputs = ScanInputs {
                q: part(0, keys),
                k: part(1, keys),
                decay: part(2, self.value_heads),
                beta: part(3, self.value_heads),
                conv: part(4, self.channels()),
            };
            let result = if self.way() == Scan::Chunked {
                chunked_recurrence(self, inputs, wide(state), b)
            } else {
                recurrence(self, inputs, &InputErrors::none(self), wide(state), b)
            };
            if pool.done(slot) {
                y.extend(result.y.iter().map(|_| 0.0));
                y_error.extend(result.y.iter().map(|_| 0.0));
            } else {
                y.extend(&result.y);
                y_error.extend(
                    result.y.iter().zip(&result.y_error).map(|(y, error)| b.fine().store(*y, *error)),
                );
            }
            after.push(result.state);
            error.push(result.state_error);
        }
        let builder = CaseBuilder::new(*self, activation);
        let case = builder.input(&x.q).input(&x.k).input(&x.kappa).input(&x.decay).input(&x.beta);
        let case = case.input(&x.conv).output(y, y_error);
        let case = case.update(&pool.before(&states), pool.after(&after), pool.after(&error));
        let case = case.slots(&pool.table);
        // A sequence that is done touches less, and a state that stays in its place is one place and not two.
        let all =
            !(0..self.slots).any(|slot| pool.done(slot)) && (self.way() != Scan::Memory || pool.moves());
        if all { case.build() } else { case.touches_less().build() }
    }
}
