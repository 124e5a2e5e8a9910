// RMSNorm: a threadgroup a row (norm/rms_norm.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "plain.h"
using namespace metal;

FUNCTION_CONSTANT(bool, WEIGHT_IS_F32, 0);

struct RmsNormParams { uint width; float eps; };

kernel void rms_norm(device const float* x [[buffer(0)]],
                     device const bfloat* w [[buffer(1)]],
                     device FINE* out [[buffer(2)]],
                     constant RmsNormParams& p [[buffer(3)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, sums, 32);
    device const float* xr = x + ulong(row) * p.width;
    float sum = 0.0f;
    for (uint i = thread_index; i < p.width; i += threads) sum = fma(xr[i], xr[i], sum);
    sum = simd_sum(sum);
    if (lane == 0) sums[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < threads / 32 ? sums[lane] : 0.0f);
    const float scale = precise::rsqrt(sum / float(p.width) + p.eps);
    for (uint i = thread_index; i < p.width; i += threads)
        out[ulong(row) * p.width + i] = fine_of(xr[i] * scale * plain_value(w, WEIGHT_IS_F32, i));
}
