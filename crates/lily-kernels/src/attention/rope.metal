// RoPE of each head (attention/rope.rs): a threadgroup for eight heads of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention.h"

struct RopeParams { uint heads; uint width; uint pairs; float ratio_high; float ratio_low; };

kernel void rope(device const ACT* x [[buffer(0)]],
                 device const uint* positions [[buffer(1)]],
                 device ACT* out [[buffer(2)]],
                 constant RopeParams& p [[buffer(3)]],
                 uint3 group [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, turns, 2 * MOST_PAIRS);
    if (thread_index < p.pairs) rope_turn(turns, positions[group.x], p.ratio_high, p.ratio_low, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint head = group.y * 8 + simd;
    if (head >= p.heads) return;
    const ulong at = (ulong(group.x) * p.heads + head) * p.width;
    for (uint i = lane; i < p.width; i += 32) {
        float value = float(x[at + i]);
        if (i < 2 * p.pairs) {
            const bool second = i >= p.pairs;
            const uint other = second ? i - p.pairs : i + p.pairs, j = second ? other : i;
            value = rope_turned(value, float(x[at + other]), second, turns[2 * j], turns[2 * j + 1]);
        }
        out[at + i] = ACT(value);
    }
}
