// Gated DeltaNet of a prompt between its projections (delta/stream.rs): a threadgroup some rows of a value head's state, in registers
// from the first token to the last. It makes q and k of its head, and v of its rows, a tile of tokens at a time.
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "plain.h"
#include "slots.h"
#include "gates.h"
using namespace metal;
#include "delta_rows.h"

FUNCTION_CONSTANT(uint, TAPS, 0);
FUNCTION_CONSTANT(uint, STEPS, 1);
FUNCTION_CONSTANT(bool, WHOLE, 2);
FUNCTION_CONSTANT(bool, CONV_IS_F32, 3);
FUNCTION_CONSTANT(bool, A_LOG_IS_F32, 4);
FUNCTION_CONSTANT(bool, DT_BIAS_IS_F32, 5);
#include "delta_conv.h"

// tile: tokens of a tile, a multiple of 4.
struct DeltaStreamParams { uint rows; uint key_heads; uint value_heads; uint key_dim; uint value_dim; uint tile; float l2_eps; };

kernel void delta_stream(device const FINE* raw [[buffer(0)]],
                         device const FINE* a [[buffer(1)]],
                         device const FINE* b [[buffer(2)]],
                         device const bfloat* conv [[buffer(3)]],
                         device const bfloat* a_log [[buffer(4)]],
                         device const bfloat* dt_bias [[buffer(5)]],
                         device FINE* y [[buffer(6)]],
                         device float* conv_state [[buffer(7)]],
                         device float* state [[buffer(8)]],
                         device const uint* slots [[buffer(9)]],
                         constant DeltaStreamParams& p [[buffer(10)]],
                         threadgroup float* shared TG_PARAM(0),
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint threads [[threads_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint simds [[simdgroups_per_threadgroup]]) {
    const uint head = group.y, slot = group.z, part = lane % 4, width = 16 * STEPS;
    const uint group_rows = simds * 8, first = group.x * group_rows, end = min(first + group_rows, p.value_dim);
    const uint sharers = p.value_heads / p.key_heads, key_head = head / sharers;
    const uint keys = p.key_heads * p.key_dim, values = p.value_heads * p.value_dim, head_row = head * p.value_dim;
    const ulong channels = 2 * keys + values;
    raw += ulong(slot) * p.rows * channels;
    y += ulong(slot) * p.rows * values + head_row;
    a += ulong(slot) * p.rows * p.value_heads + head;
    b += ulong(slot) * p.rows * p.value_heads + head;
    if (slot_done(slots, slot)) {
        for (uint t = 0; t < p.rows; ++t)
            for (uint i = first + thread_index; i < end; i += threads) y[ulong(t) * values + i] = fine_of(0.0f);
        return;
    }
    device const float* kept = conv_state + slot_state(slots, slot) * (TAPS - 1) * channels;
    device float* kept_next = conv_state + slot_next(slots, slot) * (TAPS - 1) * channels;
    const ulong entry = ulong(values) * p.key_dim;
    const float rate = precise::exp(plain_value(a_log, A_LOG_IS_F32, head)), bias = plain_value(dt_bias, DT_BIAS_IS_F32, head);
    const float root = precise::rsqrt(float(p.key_dim));

    // Of a tile: q and k of each token, zeros behind their ends; v of the group's rows; then q's scale, k's scale, kappa, decay, beta.
    threadgroup float* q = shared;
    threadgroup float* k = q + p.tile * width;
    threadgroup float* v = k + p.tile * width;
    threadgroup float* gates = v + p.tile * group_rows;

    // The convolution's state moves on: each channel by one threadgroup, those of q and k by the first that uses them.
    for (uint c = thread_index; c < (group.x == 0 && head % sharers == 0 ? 2 * p.key_dim : 0); c += threads) {
        const uint channel = key_head * p.key_dim + (c < p.key_dim ? c : keys + c - p.key_dim);
        for (uint j = 0; j + 1 < TAPS; ++j) kept_next[j * channels + channel] = history(kept + channel, raw + channel, p.rows + j, channels);
    }
    for (uint c = 2 * keys + head_row + first + thread_index; c < 2 * keys + head_row + end; c += threads)
        for (uint j = 0; j + 1 < TAPS; ++j) kept_next[j * channels + c] = history(kept + c, raw + c, p.rows + j, channels);

    const uint row = first + simd * 8 + lane / 4;
    const bool mine = row < end;
    float4 s[MOST_STEPS];
    UNROLL for (uint i = 0; i < MOST_STEPS; ++i) s[i] = float4(0.0f);
    if (mine) load_row(s, state + slot_state(slots, slot) * entry + ulong(head_row + row) * p.key_dim, p.key_dim, part, STEPS, WHOLE);

    for (uint start = 0; start < p.rows; start += p.tile) {
        const uint count = min(p.tile, p.rows - start), blocks = (count + BLOCK - 1) / BLOCK;
        // The tile before has been read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Channels of q and k, then of v; a thread a channel for four tokens.
        const uint columns = 2 * width + group_rows;
        for (uint i = thread_index; i < blocks * columns; i += threads) {
            const uint block = i / columns, column = i % columns, c = column % width, token = block * BLOCK;
            const bool is_v = column >= 2 * width;
            const uint value = first + column - 2 * width;
            const uint channel = is_v ? 2 * keys + head_row + value : column / width * keys + key_head * p.key_dim + c;
            float sums[BLOCK];
            UNROLL for (uint r = 0; r < BLOCK; ++r) sums[r] = 0.0f;
            const uint some = min(BLOCK, count - token);
            if (is_v ? value < end : c < p.key_dim) convolve(sums, kept, raw, conv, channel, start + token, some, channels);
            threadgroup float* to = is_v ? v + column - 2 * width : (column < width ? q : k) + c;
            const uint stride = is_v ? group_rows : width;
            UNROLL for (uint r = 0; r < BLOCK; ++r)
                if (r < some) to[(token + r) * stride] = silu(sums[r]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // A simdgroup a token: scales and gates.
        for (uint t = simd; t < count; t += simds) {
            float qq = 0.0f, kk = 0.0f, qk = 0.0f;
            for (uint i = lane; i < width; i += 32) {
                const float x = q[t * width + i], z = k[t * width + i];
                qq = fma(x, x, qq);
                kk = fma(z, z, kk);
                qk = fma(x, z, qk);
            }
            const float q_scale = precise::rsqrt(simd_sum(qq) + p.l2_eps) * root, k_scale = precise::rsqrt(simd_sum(kk) + p.l2_eps);
            const float kappa = simd_sum(qk) * q_scale * k_scale;
            const ulong gate = ulong(start + t) * p.value_heads;
            if (lane == 0) {
                gates[t * 5] = q_scale;
                gates[t * 5 + 1] = k_scale;
                gates[t * 5 + 2] = kappa;
                gates[t * 5 + 3] = precise::exp(-rate * softplus(float(a[gate]) + bias));
                gates[t * 5 + 4] = sigmoid(float(b[gate]));
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint t = 0; t < count; ++t) {
            threadgroup const float* q_row = q + t * width;
            threadgroup const float* k_row = k + t * width;
            threadgroup const float* gate = gates + t * 5;
            float4 sk = float4(0.0f), sq = float4(0.0f);
            UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
                if (i < STEPS) {
                    sk = fma(s[i], *(threadgroup const float4*)(k_row + 4 * (part + 4 * i)), sk);
                    sq = fma(s[i], *(threadgroup const float4*)(q_row + 4 * (part + 4 * i)), sq);
                }
            const float recalled = row_sum(sum4(sk)) * gate[1], asked = row_sum(sum4(sq)) * gate[0];
            const float delta = gate[4] * fma(-gate[3], recalled, v[t * group_rows + simd * 8 + lane / 4]);
            if (mine && part == 0) y[ulong(start + t) * values + row] = fine_of(fma(gate[3], asked, delta * gate[2]));
            const float4 g = float4(gate[3]), d = float4(delta * gate[1]);
            UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
                if (i < STEPS) s[i] = fma(g, s[i], d * *(threadgroup const float4*)(k_row + 4 * (part + 4 * i)));
        }
    }
    if (mine) store_row(s, state + slot_next(slots, slot) * entry + ulong(head_row + row) * p.key_dim, p.key_dim, part, STEPS, WHOLE);
}
