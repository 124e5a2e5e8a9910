//! The inner loops of Gated DeltaNet.

use crate::simd::{Simd, dot, fma1, silu};

/// `out[c] = SiLU(sum over j of taps[j][c] * rows[j][c])`.
#[inline(always)]
pub(crate) fn conv_row<S: Simd>(rows: &[&[f32]], taps: &[&[f32]], out: &mut [f32]) {
    out.fill(0.0);
    for (row, tap) in rows.iter().zip(taps) {
        for ((x, w), out) in row.iter().zip(*tap).zip(out.iter_mut()) {
            *out = fma1::<S>(*w, *x, *out);
        }
    }
    for out in out {
        *out = silu::<S>(*out);
    }
}

/// Weights of four taps in bf16, `[channels, 4]`, as f32, `[4, channels]`.
#[inline(always)]
pub(crate) fn four_taps<S: Simd>(weight: &[u8], out: &mut [f32]) {
    let channels = weight.as_chunks::<8>().0;
    let (a, rest) = out.split_at_mut(channels.len());
    let (b, rest) = rest.split_at_mut(channels.len());
    let (c, d) = rest.split_at_mut(channels.len());
    // a bf16 is the upper half of an f32
    let upper = |w: u32| f32::from_bits(w & 0xffff_0000);
    for ((((w, a), b), c), d) in channels.iter().zip(a).zip(b).zip(c).zip(d) {
        let w = u64::from_le_bytes(*w);
        let (low, high) = (w as u32, (w >> 32) as u32);
        (*a, *b, *c, *d) = (upper(low << 16), upper(low), upper(high << 16), upper(high));
    }
}

/// out = x * rsqrt(sum x^2 + eps) * scale.
#[inline(always)]
pub(crate) fn l2_norm<S: Simd>(x: &[f32], eps: f32, scale: f32, out: &mut [f32]) {
    let scale = scale / (dot::<S>(x, x) + eps).sqrt();
    for (x, out) in x.iter().zip(out) {
        *out = x * scale;
    }
}

/// out = a . b.
#[inline(always)]
pub(crate) fn dot_to<S: Simd>(a: &[f32], b: &[f32], out: &mut f32) {
    *out = dot::<S>(a, b);
}

/// What rows of a head's state meet, token after token. Strides are in values.
pub(crate) struct RowScan<'a> {
    /// From the first token's key head on.
    pub(crate) q: &'a [f32],
    /// From the first token's key head on.
    pub(crate) k: &'a [f32],
    /// From token to token in q and k.
    pub(crate) qk_stride: usize,
    /// k^ . q^ from the first token's key head on.
    pub(crate) kappa: &'a [f32],
    /// From token to token in kappa.
    pub(crate) kappa_stride: usize,
    /// Decay and beta from the first token's value head on.
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
    /// From token to token in decay and beta.
    pub(crate) gate_stride: usize,
    /// The rows' v side by side, from the first token on.
    pub(crate) v: &'a [f32],
    /// From token to token in v.
    pub(crate) v_stride: usize,
    /// The rows' y, a value each a token, tokens `y_stride` apart. A pointer, because other rows' values lie between.
    pub(crate) y: *mut f32,
    /// From token to token in y.
    pub(crate) y_stride: usize,
    /// Tokens.
    pub(crate) tokens: usize,
    /// Values of a row of the state.
    pub(crate) width: usize,
}

/// Tokens from which on many rows take turns in the first-level cache ([`in_cache`]) instead of two at a time in registers: before
/// that, reading them once more costs more than waiting for sums.
const TURNS_FROM: usize = 4;

/// Runs rows of a head's state S, [rows, width], over all tokens. The bits are those of one row after the other.
#[inline(always)]
pub(crate) fn scan_rows<S: Simd>(scan: &RowScan<'_>, state: &mut [f32]) {
    let (vectors, rest) = (scan.width / S::LANES, scan.width % S::LANES);
    let mut first = 0;
    // of other widths, sums are made in another order
    let registers = matches!((vectors, rest), (2 | 4 | 8 | 16, 0));
    if scan.tokens >= TURNS_FROM && registers {
        let mut blocks = state.chunks_exact_mut(TURNS * TURN_ROWS * scan.width);
        for rows in &mut blocks {
            in_cache::<S>(scan, first, rows);
            first += TURNS * TURN_ROWS;
        }
        in_pairs::<S>(scan, first, vectors, rest, blocks.into_remainder());
    } else {
        in_pairs::<S>(scan, first, vectors, rest, state);
    }
}

/// A row stays in registers where its width is a whole number of vectors that fit, and in the first-level cache otherwise. Two
/// rows at once, where they fit, because each waits for its own sums.
#[inline(always)]
fn in_pairs<S: Simd>(scan: &RowScan<'_>, mut first: usize, vectors: usize, rest: usize, state: &mut [f32]) {
    for rows in state.chunks_mut(2 * scan.width) {
        let pair = rows.len() == 2 * scan.width;
        match (vectors, rest) {
            (2, 0) if pair => in_registers::<S, 2, 2>(scan, first, rows),
            (4, 0) if pair => in_registers::<S, 4, 2>(scan, first, rows),
            (8, 0) if pair && S::LANES >= 16 => in_registers::<S, 8, 2>(scan, first, rows),
            // a loop and not `for_each`: closures do not inherit the instruction set
            _ => {
                for (i, row) in rows.chunks_mut(scan.width).enumerate() {
                    match (vectors, rest) {
                        (2, 0) => in_registers::<S, 2, 1>(scan, first + i, row),
                        (4, 0) => in_registers::<S, 4, 1>(scan, first + i, row),
                        (8, 0) => in_registers::<S, 8, 1>(scan, first + i, row),
                        (16, 0) => in_registers::<S, 16, 1>(scan, first + i, row),
                        _ => in_memory::<S>(scan, first + i, row),
                    }
                }
            }
        }
        first += 2;
    }
}

/// Rows whose sums are taken together.
const TURN_ROWS: usize = 8;

/// Blocks of rows that take turns: with rows of 128 f32, half of a first-level cache.
const TURNS: usize = 4;

/// Blocks of rows take turns, so that products of one fill the time in which the sums of another are added up, and its deltas
/// made of them. A token's change to S and the next token's products with it are one pass over the row.
#[inline(always)]
fn in_cache<S: Simd>(scan: &RowScan<'_>, first: usize, state: &mut [f32]) {
    let block = TURN_ROWS * scan.width;
    assert!(state.len() == TURNS * block);
    let mut deltas = [[0.0f32; TURN_ROWS]; TURNS];
    let mut sums = [[0.0f32; 2 * TURN_ROWS]; TURNS];
    let finish = |t: usize, turn: usize, sums: &[f32; 2 * TURN_ROWS], deltas: &mut [f32; TURN_ROWS]| {
        let (g, beta, kappa) = scan.scalars(t);
        let first = first + turn * TURN_ROWS;
        for r in 0..TURN_ROWS {
            deltas[r] = beta * (scan.v(t, first + r) - g * sums[r]);
            scan.write(t, first + r, g * sums[TURN_ROWS + r] + deltas[r] * kappa);
        }
    };
    for t in 0..scan.tokens {
        for turn in 0..TURNS {
            let rows = &mut state[turn * block..][..block];
            sums[turn] = if t == 0 {
                pass::<S, false, true>(scan, t, &deltas[turn], rows)
            } else {
                pass::<S, true, true>(scan, t, &deltas[turn], rows)
            };
            // the block before this one; of the last block, in the next round
            if turn > 0 {
                finish(t, turn - 1, &sums[turn - 1], &mut deltas[turn - 1]);
            } else if t > 0 {
                finish(t - 1, TURNS - 1, &sums[TURNS - 1], &mut deltas[TURNS - 1]);
            }
        }
    }
    finish(scan.tokens - 1, TURNS - 1, &sums[TURNS - 1], &mut deltas[TURNS - 1]);
    for turn in 0..TURNS {
        pass::<S, true, false>(scan, scan.tokens, &deltas[turn], &mut state[turn * block..][..block]);
    }
}

/// S <- g S + delta k of the token before `t`, where `CHANGE`; then S k and S q of token t for each row, where `SUM`.
#[inline(always)]
fn pass<S: Simd, const CHANGE: bool, const SUM: bool>(
    scan: &RowScan<'_>,
    t: usize,
    deltas: &[f32; TURN_ROWS],
    rows: &mut [f32],
) -> [f32; 2 * TURN_ROWS] {
    /// Rows that meet loaded k and q together.
    const TOGETHER: usize = 4;
    let width = scan.width;
    assert!(rows.len() == TURN_ROWS * width && width.is_multiple_of(S::LANES));
    let before = t.saturating_sub(1);
    let (_, k_before) = scan.qk(before, width);
    let (g, ..) = scan.scalars(before);
    let (q, k) = if SUM { scan.qk(t, width) } else { (k_before, k_before) };
    // SAFETY: the state rows have `width` values each and so have k and q (asserted, and by `qk`), a whole number of vectors;
    // the processor has `S`.
    unsafe {
        let mut sums = [S::splat(0.0); 2 * TURN_ROWS];
        let g = S::splat(g);
        for from in (0..TURN_ROWS).step_by(TOGETHER) {
            let mut delta = [S::splat(0.0); TOGETHER];
            for r in 0..TOGETHER {
                delta[r] = S::splat(deltas[from + r]);
            }
            let row = rows.as_mut_ptr().add(from * width);
            let (mut sk, mut sq) = ([[S::splat(0.0); 2]; TOGETHER], [[S::splat(0.0); 2]; TOGETHER]);
            let mut i = 0;
            while i < width {
                // every second vector has sums of its own, as in `in_registers`
                for odd in 0..2 {
                    let at = i + odd * S::LANES;
                    if at >= width {
                        break;
                    }
                    let k_before = S::load(k_before.as_ptr().add(at));
                    let (k, q) = (S::load(k.as_ptr().add(at)), S::load(q.as_ptr().add(at)));
                    for r in 0..TOGETHER {
                        let place = row.add(r * width + at);
                        let mut s = S::load(place);
                        if CHANGE {
                            s = S::fma(delta[r], k_before, S::mul(g, s));
                            S::store(place, s);
                        }
                        if SUM {
                            sk[r][odd] = S::fma(s, k, sk[r][odd]);
                            sq[r][odd] = S::fma(s, q, sq[r][odd]);
                        }
                    }
                }
                i += 2 * S::LANES;
            }
            for r in 0..TOGETHER {
                sums[from + r] = S::add(sk[r][0], sk[r][1]);
                sums[TURN_ROWS + from + r] = S::add(sq[r][0], sq[r][1]);
            }
        }
        if SUM { S::sums(sums) } else { [0.0; 2 * TURN_ROWS] }
    }
}

impl RowScan<'_> {
    #[inline(always)]
    fn qk(&self, t: usize, width: usize) -> (&[f32], &[f32]) {
        (&self.q[t * self.qk_stride..][..width], &self.k[t * self.qk_stride..][..width])
    }

    /// (decay, beta, kappa) of token t.
    #[inline(always)]
    fn scalars(&self, t: usize) -> (f32, f32, f32) {
        let gate = t * self.gate_stride;
        (self.decay[gate], self.beta[gate], self.kappa[t * self.kappa_stride])
    }

    #[inline(always)]
    fn v(&self, t: usize, row: usize) -> f32 {
        self.v[t * self.v_stride + row]
    }

    #[inline(always)]
    fn write(&self, t: usize, row: usize, y: f32) {
        // SAFETY: the caller's y holds the rows' values of each of `tokens`, `y_stride` apart, and no other task writes them.
        unsafe { self.y.add(t * self.y_stride + row).write(y) }
    }
}

/// y = g (S q) + delta kappa, delta = beta (v - g (S k)), S <- g S + delta k: one read of S a token.
#[inline(always)]
fn in_registers<S: Simd, const N: usize, const R: usize>(
    scan: &RowScan<'_>,
    first: usize,
    state: &mut [f32],
) {
    assert!(state.len() == R * N * S::LANES);
    // SAFETY: the state rows have R times N * LANES values and the q and k slices N * LANES (asserted, and by `qk`); the
    // processor has `S`.
    unsafe {
        let mut s = [[S::splat(0.0); N]; R];
        for r in 0..R {
            for i in 0..N {
                s[r][i] = S::load(state.as_ptr().add((r * N + i) * S::LANES));
            }
        }
        for t in 0..scan.tokens {
            let (q, k) = scan.qk(t, N * S::LANES);
            let (g, beta, kappa) = scan.scalars(t);
            let (mut sk, mut sq) = ([[S::splat(0.0); 2]; R], [[S::splat(0.0); 2]; R]);
            for i in 0..N {
                let (k, q) = (S::load(k.as_ptr().add(i * S::LANES)), S::load(q.as_ptr().add(i * S::LANES)));
                for r in 0..R {
                    sk[r][i % 2] = S::fma(s[r][i], k, sk[r][i % 2]);
                    sq[r][i % 2] = S::fma(s[r][i], q, sq[r][i % 2]);
                }
            }
            let mut deltas = [S::splat(0.0); R];
            for r in 0..R {
                let delta = beta * (scan.v(t, first + r) - g * S::sum(S::add(sk[r][0], sk[r][1])));
                scan.write(t, first + r, g * S::sum(S::add(sq[r][0], sq[r][1])) + delta * kappa);
                deltas[r] = S::splat(delta);
            }
            let g = S::splat(g);
            for i in 0..N {
                let k = S::load(k.as_ptr().add(i * S::LANES));
                for r in 0..R {
                    s[r][i] = S::fma(deltas[r], k, S::mul(g, s[r][i]));
                }
            }
        }
        for r in 0..R {
            for i in 0..N {
                S::store(state.as_mut_ptr().add((r * N + i) * S::LANES), s[r][i]);
            }
        }
    }
}

#[inline(always)]
fn in_memory<S: Simd>(scan: &RowScan<'_>, row: usize, state: &mut [f32]) {
    for t in 0..scan.tokens {
        let (q, k) = scan.qk(t, state.len());
        let (g, beta, kappa) = scan.scalars(t);
        let delta = beta * (scan.v(t, row) - g * dot::<S>(state, k));
        scan.write(t, row, g * dot::<S>(state, q) + delta * kappa);
        for (s, k) in state.iter_mut().zip(k) {
            *s = fma1::<S>(delta, *k, g * *s);
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_kernels::random::Random;

    use super::RowScan;
    use crate::simd::{Isa, Loops};

    /// Widths of some whole vectors and of others, rows around those that take turns, tokens around where they begin to.
    #[test]
    fn tokens_together_have_the_bits_of_one_after_the_other() {
        let mut random = Random::new(5);
        for isa in Isa::available() {
            let loops = Loops::new(isa).unwrap();
            for (width, rows, tokens) in [
                (128, 32, 9),
                (128, 32, 3),
                (64, 41, 4),
                (48, 32, 5),
                (256, 64, 6),
                (128, 31, 7),
                (20, 32, 5),
            ] {
                let [q, k] = [(); 2].map(|()| random.values(tokens * width, 0.3));
                let [decay, beta, kappa] = [(); 3].map(|()| random.values(tokens, 0.5));
                let v = random.values(tokens * rows, 1.0);
                let before = random.values(rows * width, 1.0);
                let run = |state: &mut [f32], from: usize, count: usize| {
                    let mut y = vec![0.0f32; count * rows];
                    let scan = RowScan {
                        q: &q[from * width..],
                        k: &k[from * width..],
                        qk_stride: width,
                        kappa: &kappa[from..],
                        kappa_stride: 1,
                        decay: &decay[from..],
                        beta: &beta[from..],
                        gate_stride: 1,
                        v: &v[from * rows..],
                        v_stride: rows,
                        y: y.as_mut_ptr(),
                        y_stride: rows,
                        tokens: count,
                        width,
                    };
                    // SAFETY: the loops belong to this processor; y has the rows' values of each token.
                    unsafe { (loops.scan_rows)(&scan, state) };
                    y
                };
                let (mut together, mut one_by_one) = (before.clone(), before);
                let y = run(&mut together, 0, tokens);
                let single: Vec<f32> = (0..tokens).flat_map(|t| run(&mut one_by_one, t, 1)).collect();
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let name = format!("{}, {rows} rows of {width}, {tokens} tokens", isa.name());
                assert!(bits(&y) == bits(&single), "y: {name}");
                assert!(bits(&together) == bits(&one_by_one), "state: {name}");
            }
        }
    }
}
