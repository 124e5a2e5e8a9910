// RMSNorm of each head (attention/head_norm.rs): a simdgroup a head.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention.h"

FUNCTION_CONSTANT(bool, WEIGHT_IS_F32, 0);

struct HeadNormParams { uint heads; uint width; float eps; };

kernel void head_norm(device const ACT* x [[buffer(0)]],
                      device const bfloat* w [[buffer(1)]],
                      device ACT* out [[buffer(2)]],
                      constant HeadNormParams& p [[buffer(3)]],
                      uint group [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint head = group * 8 + simd;
    if (head >= p.heads) return;
    const ulong at = ulong(head) * p.width;
    const float scale = head_scale(x + at, p.width, p.eps, lane);
    for (uint i = lane; i < p.width; i += 32) out[at + i] = ACT(float(x[at + i]) * scale * plain_value(w, WEIGHT_IS_F32, i));
}
