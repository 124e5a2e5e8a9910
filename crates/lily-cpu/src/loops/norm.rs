//! Norms, gates and sums along rows.

use crate::simd::{Simd, dot, fma1, silu};

/// out = SiLU(gate) * up.
#[inline(always)]
pub(crate) fn silu_mul<S: Simd>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((g, u), out) in gate.iter().zip(up).zip(out) {
        *out = silu::<S>(*g) * u;
    }
}

/// out = x * rsqrt(mean(x^2) + eps) * w.
#[inline(always)]
pub(crate) fn rms_norm<S: Simd>(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot::<S>(x, x) / x.len() as f32 + eps).sqrt();
    for ((x, w), out) in x.iter().zip(w).zip(out) {
        *out = x * scale * w;
    }
}

/// out = RMSNorm(y; w) * SiLU(z).
#[inline(always)]
pub(crate) fn gated_norm<S: Simd>(y: &[f32], z: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot::<S>(y, y) / y.len() as f32 + eps).sqrt();
    for (((y, z), w), out) in y.iter().zip(z).zip(w).zip(out) {
        *out = y * scale * w * silu::<S>(*z);
    }
}

/// out += scale * x.
#[inline(always)]
pub(crate) fn scale_add<S: Simd>(scale: f32, x: &[f32], out: &mut [f32]) {
    for (x, out) in x.iter().zip(out) {
        *out = fma1::<S>(scale, *x, *out);
    }
}
