// Blocks of keys together (attention/attend_combine.rs): a threadgroup a query head of a row. Each simdgroup takes every 16th block in
// order; their sums are then added in order.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);

struct AttendCombineParams { uint query_heads; uint block; uint blocks; };

constant constexpr uint PARTS = 16;

kernel void attend_combine(device const float* partial [[buffer(0)]],
                           device const ACT* qg [[buffer(1)]],
                           device const uint* positions [[buffer(2)]],
                           device FINE* out [[buffer(3)]],
                           constant AttendCombineParams& p [[buffer(4)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, sums, PARTS * MOST_WIDTH);
    TG_ARRAY(float, tops, PARTS);
    TG_ARRAY(float, weights, PARTS);
    const uint count = positions[group / p.query_heads] / p.block + 1, stride = WIDTH + 2;
    device const float* blocks = partial + ulong(group) * p.blocks * stride;
    float top = minus_infinity();
    for (uint b = thread_index; b < count; b += PARTS * 32) top = max(top, blocks[ulong(b) * stride + WIDTH]);
    top = simd_max(top);
    if (lane == 0) tops[simd] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = simd_max(lane < PARTS ? tops[lane] : minus_infinity());
    float sum[8], weight = 0.0f;
    UNROLL for (uint i = 0; i < 8; ++i) sum[i] = 0.0f;
    for (uint b = simd; b < count; b += PARTS) {
        device const float* block = blocks + ulong(b) * stride;
        const float fade = precise::exp2(block[WIDTH] - top);
        weight = fma(block[WIDTH + 1], fade, weight);
        UNROLL for (uint i = 0; i < 8; ++i)
            if (i * 32 + lane < WIDTH) sum[i] = fma(block[i * 32 + lane], fade, sum[i]);
    }
    UNROLL for (uint i = 0; i < 8; ++i) sums[simd * MOST_WIDTH + i * 32 + lane] = sum[i];
    if (lane == 0) weights[simd] = weight;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < WIDTH; i += PARTS * 32) {
        float total = 0.0f, all = 0.0f;
        for (uint n = 0; n < PARTS; ++n) {
            total += sums[n * MOST_WIDTH + i];
            all += weights[n];
        }
        out[ulong(group) * WIDTH + i] = fine_of(total / all * sigmoid(float(qg[(2 * ulong(group) + 1) * WIDTH + i])));
    }
}
