// The experts of each row and their weights: a simdgroup a row (moe/route.rs).
#include <metal_stdlib>
#include "portable.h"
#include "top_k.h"
using namespace metal;

struct RouteParams { uint rows; uint experts; uint top_k; };

kernel void route(device const float* logits [[buffer(0)]],
                  device uint* ids [[buffer(1)]],
                  device float* weights [[buffer(2)]],
                  constant RouteParams& p [[buffer(3)]],
                  uint group [[threadgroup_position_in_grid]],
                  uint simds [[simdgroups_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint row = group * simds + simd;
    if (row >= p.rows) return;
    uint expert, key;
    top_k_choose(logits + ulong(row) * p.experts, p.experts, p.top_k, lane, expert, key);
    const float weight = top_k_weight(key, p.top_k, lane);
    if (lane < p.top_k) {
        ids[row * p.top_k + lane] = expert;
        weights[row * p.top_k + lane] = weight;
    }
}
