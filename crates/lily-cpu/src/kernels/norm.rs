//! Norms, and the sum of the experts. One task a row.

use lily_kernels::moe::Combine;
use lily_kernels::norm::{GatedNorm, RmsNorm};

use super::Task;
use crate::pool::sized;

pub(crate) fn rms_norm(k: &RmsNorm, t: Task<'_>) {
    let w = sized(&mut t.scratch.plain, k.width);
    t.args.plain(1, k.weight, w);
    let x = &t.args.f32(0)[t.index * k.width..][..k.width];
    // SAFETY: task i writes row i only; the loops belong to this processor.
    unsafe { (t.loops.rms_norm)(x, w, k.eps, t.args.f32_mut(2, t.index * k.width, k.width)) };
}

pub(crate) fn gated_norm(k: &GatedNorm, t: Task<'_>) {
    let w = sized(&mut t.scratch.plain, k.width);
    t.args.plain(2, k.weight, w);
    for head in 0..k.heads {
        let start = (t.index * k.heads + head) * k.width;
        let (y, z) = (&t.args.f32(0)[start..][..k.width], &t.args.f32(1)[start..][..k.width]);
        // SAFETY: task i writes row i only; the loops belong to this processor.
        unsafe { (t.loops.gated_norm)(y, z, w, k.eps, t.args.f32_mut(3, start, k.width)) };
    }
}

pub(crate) fn combine(k: &Combine, t: Task<'_>) {
    let r = t.index;
    let (expert_out, weights) = (t.args.f32(0), t.args.f32(1));
    let sum = sized(&mut t.scratch.out, k.width);
    sum.fill(0.0);
    // SAFETY: the loops belong to this processor.
    let mut add = |scale: f32, x: &[f32]| unsafe { (t.loops.scale_add)(scale, x, sum) };
    for p in r * k.top_k..(r + 1) * k.top_k {
        add(if k.weighted { weights[p] } else { 1.0 }, &expert_out[p * k.width..][..k.width]);
    }
    let gate = t.args.f32(3)[r];
    add(1.0 / (1.0 + (-gate).exp()), &t.args.f32(2)[r * k.width..][..k.width]);
    // SAFETY: task i writes row i only.
    let x = unsafe { t.args.f32_mut(4, r * k.width, k.width) };
    x.iter_mut().zip(sum.iter()).for_each(|(x, y)| *x += y);
}
