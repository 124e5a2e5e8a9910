//! Gated DeltaNet.

use lily_kernels::PlainType;
use lily_kernels::delta::{ConvSilu, ConvState, DeltaPrep, DeltaScan, L2_EPS};

use super::Task;
use crate::loops::delta::RowScan;
use crate::pool::sized;

/// Channels of a convolution task: with four taps of weights and the rows they meet, well inside a first-level cache.
const CONV_CHANNELS: usize = 512;

/// Rows of a head's state S that a scan task runs, one after the other.
const SCAN_ROWS: usize = 32;

pub(crate) fn conv_tasks(k: &ConvSilu) -> usize {
    k.slots * k.channels.div_ceil(CONV_CHANNELS)
}

/// One sequence, a block of channels, all rows.
pub(crate) fn conv_silu(k: &ConvSilu, t: Task<'_>) {
    let blocks = k.channels.div_ceil(CONV_CHANNELS);
    let (slot, first) = (t.index / blocks, t.index % blocks * CONV_CHANNELS);
    let width = CONV_CHANNELS.min(k.channels - first);
    let (raw, state) = (t.args.f32(0), t.args.f32(3 + slot));
    let raw = &raw[slot * k.rows * k.channels..][..k.rows * k.channels];

    // weights come as [channels, taps]; the loop wants each tap's channels side by side
    let taps = sized(&mut t.scratch.out, k.taps * width);
    if (k.weight, k.taps) == (PlainType::Bf16, 4) {
        // SAFETY: the loops belong to this processor.
        unsafe { (t.loops.four_taps)(&t.args.bytes(1)[8 * first..][..8 * width], taps) };
    } else {
        let weight = sized(&mut t.scratch.plain, k.taps * width);
        k.weight.read(t.args.bytes(1), first * k.taps, weight);
        for (c, weight) in weight.chunks_exact(k.taps).enumerate() {
            for (j, w) in weight.iter().enumerate() {
                taps[j * width + c] = *w;
            }
        }
    }
    let taps: Vec<&[f32]> = taps.chunks_exact(width).collect();
    let before = k.taps - 1;
    for row in 0..k.rows {
        // row i of [state; raw] is i - before of raw
        let rows: Vec<&[f32]> = (row..row + k.taps)
            .map(|i| match i.checked_sub(before) {
                Some(i) => &raw[i * k.channels + first..][..width],
                None => &state[i * k.channels + first..][..width],
            })
            .collect();
        let start = (slot * k.rows + row) * k.channels + first;
        // SAFETY: no two tasks share a sequence and a channel; the loops belong to this processor.
        unsafe { (t.loops.conv_row)(&rows, &taps, t.args.f32_mut(2, start, width)) };
    }
}

pub(crate) fn conv_state(k: &ConvState, t: Task<'_>) {
    let (slot, kept) = (t.index, k.taps - 1);
    let raw = &t.args.f32(0)[slot * k.rows * k.channels..][..k.rows * k.channels];
    // SAFETY: a task has its sequence to itself.
    let state = unsafe { t.args.f32_mut(1 + slot, 0, kept * k.channels) };
    let fresh = k.rows.min(kept);
    state.copy_within(fresh * k.channels.., 0);
    state[(kept - fresh) * k.channels..].copy_from_slice(&raw[(k.rows - fresh) * k.channels..]);
}

/// One row.
pub(crate) fn prep(k: &DeltaPrep, t: Task<'_>) {
    let r = t.index;
    let conv = &t.args.f32(0)[r * k.channels()..][..k.channels()];
    let width = k.key_heads * k.key_dim;
    // SAFETY: task i writes row i only.
    let (q_out, k_out, kappa, decay, beta) = unsafe {
        (
            t.args.f32_mut(5, r * width, width),
            t.args.f32_mut(6, r * width, width),
            t.args.f32_mut(7, r * k.key_heads, k.key_heads),
            t.args.f32_mut(8, r * k.value_heads, k.value_heads),
            t.args.f32_mut(9, r * k.value_heads, k.value_heads),
        )
    };
    for h in 0..k.key_heads {
        let head = h * k.key_dim..(h + 1) * k.key_dim;
        let (q_out, k_out) = (&mut q_out[head.clone()], &mut k_out[head.clone()]);
        // SAFETY: the loops belong to this processor.
        unsafe {
            (t.loops.l2_norm)(&conv[head.clone()], L2_EPS, 1.0 / (k.key_dim as f32).sqrt(), q_out);
            (t.loops.l2_norm)(&conv[width..][head], L2_EPS, 1.0, k_out);
            (t.loops.dot_to)(q_out, k_out, &mut kappa[h]);
        }
    }
    let gates = r * k.value_heads..(r + 1) * k.value_heads;
    let (a, b) = (&t.args.f32(1)[gates.clone()], &t.args.f32(2)[gates]);
    let (a_log, dt_bias) = (t.args.bytes(3), t.args.bytes(4));
    for h in 0..k.value_heads {
        let dt = a[h] + k.dt_bias.get(dt_bias, h);
        let softplus = dt.max(0.0) + (-dt.abs()).exp().ln_1p();
        decay[h] = (-k.a_log.get(a_log, h).exp() * softplus).exp();
        beta[h] = 1.0 / (1.0 + (-b[h]).exp());
    }
}

pub(crate) fn scan_tasks(k: &DeltaScan) -> usize {
    k.slots * k.value_heads * k.value_dim.div_ceil(SCAN_ROWS)
}

/// One sequence, one value head, a block of rows of S, all tokens.
pub(crate) fn scan(k: &DeltaScan, t: Task<'_>) {
    let blocks = k.value_dim.div_ceil(SCAN_ROWS);
    let (head, first) = (t.index / blocks % k.value_heads, t.index % blocks * SCAN_ROWS);
    let slot = t.index / blocks / k.value_heads;
    let key_head = head / (k.value_heads / k.key_heads);
    let token = slot * k.rows;
    let from = |i: usize, start: usize| &t.args.f32(i)[start..];
    let (keys, values) = (k.key_heads * k.key_dim, k.value_heads * k.value_dim);
    let count = SCAN_ROWS.min(k.value_dim - first);
    let y_start = token * values + head * k.value_dim + first;
    // SAFETY: a task has these rows of S, and their values of y, to itself; the loops belong to this processor.
    unsafe {
        // the rows' values of y of one token and the next lie `values` apart; their span ends with the last token's
        let y = t.args.f32_ptr(6, y_start, (k.rows - 1) * values + count);
        let state = (head * k.value_dim + first) * k.key_dim;
        let state = t.args.f32_mut(7 + slot, state, count * k.key_dim);
        let scan = RowScan {
            q: from(0, token * keys + key_head * k.key_dim),
            k: from(1, token * keys + key_head * k.key_dim),
            qk_stride: keys,
            kappa: from(2, token * k.key_heads + key_head),
            kappa_stride: k.key_heads,
            decay: from(3, token * k.value_heads + head),
            beta: from(4, token * k.value_heads + head),
            gate_stride: k.value_heads,
            v: from(5, token * k.channels() + 2 * keys + head * k.value_dim + first),
            v_stride: k.channels(),
            y,
            y_stride: values,
            tokens: k.rows,
            width: k.key_dim,
        };
        (t.loops.scan_rows)(&scan, state);
    }
}
