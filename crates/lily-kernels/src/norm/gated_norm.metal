// GatedNorm: a simdgroup a head of a row (norm/gated_norm.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "gates.h"
#include "plain.h"
using namespace metal;

FUNCTION_CONSTANT(bool, WEIGHT_IS_F32, 0);

struct GatedNormParams { uint heads; uint width; float eps; };

kernel void gated_norm(device const FINE* y [[buffer(0)]],
                       device const FINE* z [[buffer(1)]],
                       device const bfloat* w [[buffer(2)]],
                       device FINE* out [[buffer(3)]],
                       constant GatedNormParams& p [[buffer(4)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint simdgroups [[simdgroups_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint head = group * simdgroups + simd;
    if (head >= p.heads) return;
    const ulong start = ulong(head) * p.width;
    float sum = 0.0f;
    for (uint i = lane; i < p.width; i += 32) sum = fma(float(y[start + i]), float(y[start + i]), sum);
    const float scale = precise::rsqrt(simd_sum(sum) / float(p.width) + p.eps);
    for (uint i = lane; i < p.width; i += 32) {
        const float normed = float(y[start + i]) * scale * plain_value(w, WEIGHT_IS_F32, i);
        out[start + i] = fine_of(normed * silu(float(z[start + i])));
    }
}
