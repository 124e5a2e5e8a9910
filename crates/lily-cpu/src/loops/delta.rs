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

/// What one row of a head's state meets, token after token. Strides are in values.
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
    /// This row's v, from the first token on.
    pub(crate) v: &'a [f32],
    /// From token to token in v.
    pub(crate) v_stride: usize,
    /// This row's y, a value a token, `y_stride` apart. Cells, because other rows' values lie between.
    pub(crate) y: *mut f32,
    /// From token to token in y.
    pub(crate) y_stride: usize,
    /// Tokens.
    pub(crate) tokens: usize,
}

/// Runs one row `[key_dim]` of a head's state S over all tokens: the row stays in registers where its width is a whole
/// number of vectors that fit, and in the first-level cache otherwise.
#[inline(always)]
pub(crate) fn scan_row<S: Simd>(scan: &RowScan<'_>, state: &mut [f32]) {
    match (state.len() / S::LANES, state.len() % S::LANES) {
        (2, 0) => in_registers::<S, 2>(scan, state),
        (4, 0) => in_registers::<S, 4>(scan, state),
        (8, 0) => in_registers::<S, 8>(scan, state),
        (16, 0) => in_registers::<S, 16>(scan, state),
        _ => in_memory::<S>(scan, state),
    }
}

impl RowScan<'_> {
    #[inline(always)]
    fn qk(&self, t: usize, width: usize) -> (&[f32], &[f32]) {
        (&self.q[t * self.qk_stride..][..width], &self.k[t * self.qk_stride..][..width])
    }

    /// (decay, beta, v, kappa) of token t.
    #[inline(always)]
    fn scalars(&self, t: usize) -> (f32, f32, f32, f32) {
        let gate = t * self.gate_stride;
        (self.decay[gate], self.beta[gate], self.v[t * self.v_stride], self.kappa[t * self.kappa_stride])
    }

    #[inline(always)]
    fn write(&self, t: usize, y: f32) {
        // SAFETY: the caller's y holds `tokens` values `y_stride` apart, and no other task writes this row's.
        unsafe { self.y.add(t * self.y_stride).write(y) }
    }
}

/// y = g (S q) + delta kappa, delta = beta (v - g (S k)), S <- g S + delta k: one read of S a token.
#[inline(always)]
fn in_registers<S: Simd, const N: usize>(scan: &RowScan<'_>, state: &mut [f32]) {
    assert!(state.len() == N * S::LANES);
    // SAFETY: the state row and the q and k slices have N * LANES values (asserted, and by `qk`); the processor has `S`.
    unsafe {
        let mut s = [S::splat(0.0); N];
        for i in 0..N {
            s[i] = S::load(state.as_ptr().add(i * S::LANES));
        }
        for t in 0..scan.tokens {
            let (q, k) = scan.qk(t, N * S::LANES);
            let (g, beta, v, kappa) = scan.scalars(t);
            let (mut sk, mut sq) = ([S::splat(0.0); 2], [S::splat(0.0); 2]);
            for i in 0..N {
                sk[i % 2] = S::fma(s[i], S::load(k.as_ptr().add(i * S::LANES)), sk[i % 2]);
                sq[i % 2] = S::fma(s[i], S::load(q.as_ptr().add(i * S::LANES)), sq[i % 2]);
            }
            let delta = beta * (v - g * S::sum(S::add(sk[0], sk[1])));
            scan.write(t, g * S::sum(S::add(sq[0], sq[1])) + delta * kappa);
            let (g, delta) = (S::splat(g), S::splat(delta));
            for i in 0..N {
                s[i] = S::fma(delta, S::load(k.as_ptr().add(i * S::LANES)), S::mul(g, s[i]));
            }
        }
        for i in 0..N {
            S::store(state.as_mut_ptr().add(i * S::LANES), s[i]);
        }
    }
}

#[inline(always)]
fn in_memory<S: Simd>(scan: &RowScan<'_>, state: &mut [f32]) {
    for t in 0..scan.tokens {
        let (q, k) = scan.qk(t, state.len());
        let (g, beta, v, kappa) = scan.scalars(t);
        let delta = beta * (v - g * dot::<S>(state, k));
        scan.write(t, g * dot::<S>(state, q) + delta * kappa);
        for (s, k) in state.iter_mut().zip(k) {
            *s = fma1::<S>(delta, *k, g * *s);
        }
    }
}
