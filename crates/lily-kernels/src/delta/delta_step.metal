// A decode step of Gated DeltaNet between its projections (delta/step.rs): a threadgroup some rows, or with the gated norm all rows, of
// a value head's state. Each makes the q and k of its head itself; up to four tokens share one read of the state.
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "plain.h"
#include "slots.h"
#include "gates.h"
using namespace metal;
#include "delta_rows.h"

FUNCTION_CONSTANT(bool, GATED, 0);
FUNCTION_CONSTANT(uint, TAPS, 1);
FUNCTION_CONSTANT(uint, STEPS, 2);
FUNCTION_CONSTANT(bool, WHOLE, 3);
FUNCTION_CONSTANT(bool, CONV_IS_F32, 4);
FUNCTION_CONSTANT(bool, A_LOG_IS_F32, 5);
FUNCTION_CONSTANT(bool, DT_BIAS_IS_F32, 6);
FUNCTION_CONSTANT(bool, NORM_IS_F32, 7);

// group_rows: rows of the state of a threadgroup. l2_eps is added to the sum of squares of q and of k, eps to the mean of those of y.
struct DeltaStepParams { uint rows; uint key_heads; uint value_heads; uint key_dim; uint value_dim; uint group_rows; float l2_eps; float eps; };

// Up to BLOCK tokens share a visit of the state, one for each of the four lanes of a row.
#include "delta_conv.h"

kernel void delta_step(device const FINE* raw [[buffer(0)]],
                       device const FINE* z [[buffer(1)]],
                       device const FINE* a [[buffer(2)]],
                       device const FINE* b [[buffer(3)]],
                       device const bfloat* conv [[buffer(4)]],
                       device const bfloat* a_log [[buffer(5)]],
                       device const bfloat* dt_bias [[buffer(6)]],
                       device const bfloat* norm [[buffer(7)]],
                       device FINE* out [[buffer(8)]],
                       device float* conv_state [[buffer(9)]],
                       device float* state [[buffer(10)]],
                       device const uint* slots [[buffer(11)]],
                       constant DeltaStepParams& p [[buffer(12)]],
                       threadgroup float* shared TG_PARAM(0),
                       uint3 group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint threads [[threads_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint simds [[simdgroups_per_threadgroup]]) {
    const uint head = group.y, slot = group.z, part = lane % 4, width = 16 * STEPS;
    const uint first = group.x * p.group_rows, end = min(first + p.group_rows, p.value_dim);
    const uint sharers = p.value_heads / p.key_heads, key_head = head / sharers;
    const uint keys = p.key_heads * p.key_dim, values = p.value_heads * p.value_dim, head_row = head * p.value_dim;
    const ulong channels = 2 * keys + values;
    raw += ulong(slot) * p.rows * channels;
    out += ulong(slot) * p.rows * values + head_row;
    z += ulong(slot) * p.rows * values + head_row;
    a += ulong(slot) * p.rows * p.value_heads + head;
    b += ulong(slot) * p.rows * p.value_heads + head;
    if (slot_done(slots, slot)) {
        for (uint t = 0; t < p.rows; ++t)
            for (uint i = first + thread_index; i < end; i += threads) out[ulong(t) * values + i] = fine_of(0.0f);
        return;
    }
    device const float* kept = conv_state + slot_state(slots, slot) * (TAPS - 1) * channels;
    device float* kept_next = conv_state + slot_next(slots, slot) * (TAPS - 1) * channels;
    const ulong entry = ulong(values) * p.key_dim;
    device float* next = state + slot_next(slots, slot) * entry;
    // Of each token of a block: q and k, zeros behind their ends, and v of the group's rows, which y replaces.
    const uint columns = 2 * width + end - first, stride = 2 * width + (p.group_rows + 3) / 4 * 4;
    const float rate = precise::exp(plain_value(a_log, A_LOG_IS_F32, head)), bias = plain_value(dt_bias, DT_BIAS_IS_F32, head);
    const float root = precise::rsqrt(float(p.key_dim));

    // The convolution's state moves on: each channel by one threadgroup, those of q and k by the first that uses them.
    for (uint c = thread_index; c < (group.x == 0 && head % sharers == 0 ? 2 * p.key_dim : 0); c += threads) {
        const uint channel = key_head * p.key_dim + (c < p.key_dim ? c : keys + c - p.key_dim);
        for (uint j = 0; j + 1 < TAPS; ++j) kept_next[j * channels + channel] = history(kept + channel, raw + channel, p.rows + j, channels);
    }
    for (uint c = 2 * keys + head_row + first + thread_index; c < 2 * keys + head_row + end; c += threads)
        for (uint j = 0; j + 1 < TAPS; ++j) kept_next[j * channels + c] = history(kept + c, raw + c, p.rows + j, channels);

    for (uint start = 0; start < p.rows; start += BLOCK) {
        const uint count = min(BLOCK, p.rows - start);
        device const float* from = start == 0 ? state + slot_state(slots, slot) * entry : next;
        float4 s[MOST_STEPS];
        UNROLL for (uint i = 0; i < MOST_STEPS; ++i) s[i] = float4(0.0f);
        uint row = first + simd * 8 + lane / 4;
        // Under way while q and k are made.
        if (row < end) load_row(s, from + ulong(head_row + row) * p.key_dim, p.key_dim, part, STEPS, WHOLE);
        // The gate of this thread's first element of the norm likewise.
        const uint pieces = (p.value_dim + 31) / 32, element = simd % pieces * 32 + lane;
        float gate = 0.0f;
        if (GATED && simd < count * pieces && element < p.value_dim)
            gate = silu(float(z[ulong(start + simd / pieces) * values + element])) * plain_value(norm, NORM_IS_F32, element);

        if (start > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < columns; i += threads) {
            const bool is_v = i >= 2 * width;
            const uint c = i % width;
            const uint channel = is_v ? 2 * keys + head_row + first + i - 2 * width : i / width * keys + key_head * p.key_dim + c;
            float sums[BLOCK];
            UNROLL for (uint r = 0; r < BLOCK; ++r) sums[r] = 0.0f;
            if (is_v || c < p.key_dim) convolve(sums, kept, raw, conv, channel, start, count, channels);
            UNROLL for (uint r = 0; r < BLOCK; ++r)
                if (r < count) shared[r * stride + i] = silu(sums[r]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Lane `part` of a row has the gates, v and y of token `part` of the block.
        const uint token = start + min(part, count - 1);
        const float my_decay = precise::exp(-rate * softplus(float(a[ulong(token) * p.value_heads]) + bias));
        const float my_beta = sigmoid(float(b[ulong(token) * p.value_heads]));
        for (uint base = first + simd * 8; base < end; base += simds * 8) {
            row = base + lane / 4;
            const bool mine = row < end;
            if (base != first + simd * 8) {
                UNROLL for (uint i = 0; i < MOST_STEPS; ++i) s[i] = float4(0.0f);
                if (mine) load_row(s, from + ulong(head_row + row) * p.key_dim, p.key_dim, part, STEPS, WHOLE);
            }
            threadgroup float* own = shared + part * stride + 2 * width + row - first;
            const float my_v = mine && part < count ? *own : 0.0f;
            for (uint r = 0; r < count; ++r) {
                threadgroup const float* q_row = shared + r * stride;
                threadgroup const float* k_row = q_row + width;
                float qq = 0.0f, kk = 0.0f, qk = 0.0f;
                for (uint i = lane; i < width; i += 32) {
                    qq = fma(q_row[i], q_row[i], qq);
                    kk = fma(k_row[i], k_row[i], kk);
                    qk = fma(q_row[i], k_row[i], qk);
                }
                const float q_scale = precise::rsqrt(simd_sum(qq) + p.l2_eps) * root, k_scale = precise::rsqrt(simd_sum(kk) + p.l2_eps);
                const float kappa = simd_sum(qk) * q_scale * k_scale;
                float4 sk = float4(0.0f), sq = float4(0.0f);
                UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
                    if (i < STEPS) {
                        sk = fma(s[i], *(threadgroup const float4*)(k_row + 4 * (part + 4 * i)), sk);
                        sq = fma(s[i], *(threadgroup const float4*)(q_row + 4 * (part + 4 * i)), sq);
                    }
                const float recalled = row_sum(sum4(sk)) * k_scale, asked = row_sum(sum4(sq)) * q_scale;
                const ushort owner = ushort(lane - part + r);
                const float decay = simd_shuffle(my_decay, owner), beta = simd_shuffle(my_beta, owner), v = simd_shuffle(my_v, owner);
                const float delta = beta * fma(-decay, recalled, v), result = fma(decay, asked, delta * kappa);
                if (mine && part == r) {
                    if (GATED) *own = result;
                    else out[ulong(start + r) * values + row] = fine_of(result);
                }
                const float4 g = float4(decay), d = float4(delta * k_scale);
                UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
                    if (i < STEPS) s[i] = fma(g, s[i], d * *(threadgroup const float4*)(k_row + 4 * (part + 4 * i)));
            }
            if (mine) store_row(s, next + ulong(head_row + row) * p.key_dim, p.key_dim, part, STEPS, WHOLE);
        }
        if (GATED) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            // A simdgroup a piece of 32 values of a token's head; it sums the head's squares for itself.
            for (uint piece = simd; piece < count * pieces; piece += simds) {
                const uint r = piece / pieces, i = piece % pieces * 32 + lane;
                threadgroup const float* y_row = shared + r * stride + 2 * width;
                float sum = 0.0f;
                for (uint j = lane; j < p.value_dim; j += 32) sum = fma(y_row[j], y_row[j], sum);
                const float scale = precise::rsqrt(simd_sum(sum) / float(p.value_dim) + p.eps);
                if (i < p.value_dim) {
                    const ulong at = ulong(start + r) * values + i;
                    if (piece != simd) gate = silu(float(z[at])) * plain_value(norm, NORM_IS_F32, i);
                    out[at] = fine_of(y_row[i] * scale * gate);
                }
            }
        }
    }
}
