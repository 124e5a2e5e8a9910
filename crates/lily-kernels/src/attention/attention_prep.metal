// Norm, RoPE and the cache write (attention/prep.rs): a simdgroup for each query head, each new key and each new value of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention.h"

FUNCTION_CONSTANT(bool, Q_NORM_IS_F32, 0);
FUNCTION_CONSTANT(bool, K_NORM_IS_F32, 1);

struct AttentionPrepParams { uint rows; uint query_heads; uint kv_heads; uint width; uint pairs; float ratio_high; float ratio_low; float eps; };

kernel void attention_prep(device const ACT* qg [[buffer(0)]],
                           device const ACT* k [[buffer(1)]],
                           device const ACT* v [[buffer(2)]],
                           device const bfloat* q_norm [[buffer(3)]],
                           device const bfloat* k_norm [[buffer(4)]],
                           device const uint* positions [[buffer(5)]],
                           device ACT* q [[buffer(6)]],
                           device ACT* keys [[buffer(7)]],
                           device ACT* values [[buffer(8)]],
                           device const uint* slots [[buffer(9)]],
                           constant AttentionPrepParams& p [[buffer(10)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, turns, 2 * MOST_PAIRS);
    const uint row = group.x, position = positions[row], slot = row / p.rows;
    if (thread_index < p.pairs) rope_turn(turns, position, p.ratio_high, p.ratio_low, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint unit = group.y * 8 + simd;
    if (unit < p.query_heads) {
        const ulong head = ulong(row) * p.query_heads + unit;
        device const ACT* x = qg + 2 * head * p.width;
        const float scale = head_scale(x, p.width, p.eps, lane);
        for (uint i = lane; i < p.width; i += 32) q[head * p.width + i] = ACT(prepared(x, q_norm, Q_NORM_IS_F32, scale, turns, p.pairs, i));
        return;
    }
    unit -= p.query_heads;
    if (unit >= 2 * p.kv_heads) return;
    const uint head = unit % p.kv_heads;
    const ulong from = (ulong(row) * p.kv_heads + head) * p.width, to = cache_at(slots, slot, position, head, p.kv_heads, p.width);
    if (unit < p.kv_heads) {
        const float scale = head_scale(k + from, p.width, p.eps, lane);
        for (uint i = lane; i < p.width; i += 32) keys[to + i] = ACT(prepared(k + from, k_norm, K_NORM_IS_F32, scale, turns, p.pairs, i));
    } else {
        for (uint i = lane; i < p.width; i += 32) values[to + i] = v[from + i];
    }
}
