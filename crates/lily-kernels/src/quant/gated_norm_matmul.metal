// GatedNormMatmul: a simdgroup for OUTPUTS outputs of one to four rows (quant/gated_norm_matmul.rs, gemv.h). A threadgroup first
// makes the norms' factors of all heads; the gate is computed where y is loaded.
#include <metal_stdlib>
#include "portable.h"
#include "gates.h"
#include "gemv.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);
FUNCTION_CONSTANT(uint, ROWS, 2);
FUNCTION_CONSTANT(uint, OUTPUTS, 3);
FUNCTION_CONSTANT(bool, NORM_IS_F32, 4);

struct GatedNormMatmulParams { uint outputs; uint heads; uint width; float eps; };

/// y normed and gated.
struct GatedRows {
    device const FINE* y;
    device const FINE* z;
    device const bfloat* norm;
    threadgroup const float* factors;
    uint heads, width;
    void load(thread float* v, uint r, uint k) {
        const ulong at = ulong(r) * heads * width + k;
        float gate[16];
        UNROLL
        for (uint i = 0; i < 16; i += 4) {
            fine_load4(v + i, y + at + i);
            fine_load4(gate + i, z + at + i);
        }
        if (width % 16 == 0) {
            const float factor = factors[r * heads + k / width];
            float w[16];
            UNROLL
            for (uint i = 0; i < 16; i += 4) plain_load4(w + i, norm, NORM_IS_F32, k % width + i);
            UNROLL
            for (uint i = 0; i < 16; ++i) v[i] = v[i] * factor * w[i] * silu(gate[i]);
        } else {
            // The run ends in another head than it begins.
            UNROLL
            for (uint i = 0; i < 16; ++i) {
                const float factor = factors[r * heads + (k + i) / width];
                v[i] = v[i] * factor * plain_value(norm, NORM_IS_F32, (k + i) % width) * silu(gate[i]);
            }
        }
    }
};

kernel void gated_norm_matmul(device const FINE* y [[buffer(0)]],
                              device const FINE* z [[buffer(1)]],
                              device const bfloat* norm [[buffer(2)]],
                              device const uint* weight [[buffer(3)]],
                              device const bfloat* scales [[buffer(4)]],
                              device const bfloat* biases [[buffer(5)]],
                              device float* out [[buffer(6)]],
                              constant GatedNormMatmulParams& p [[buffer(7)]],
                              uint group [[threadgroup_position_in_grid]],
                              uint simdgroups [[simdgroups_per_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]],
                              uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, factors, 1024);
    for (uint head = simd; head < ROWS * p.heads; head += simdgroups) {
        device const FINE* values = y + ulong(head) * p.width;
        float sum = 0.0f;
        for (uint i = lane; i < p.width; i += 32) sum = fma(float(values[i]), float(values[i]), sum);
        sum = simd_sum(sum);
        if (lane == 0) factors[head] = precise::rsqrt(sum / float(p.width) + p.eps);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint first = (group * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;
    const uint inputs = p.heads * p.width;
    const QuantMatrix matrix = {weight, scales, biases, inputs, BITS, GROUP};
    QuantRow w[4];
    UNROLL
    for (uint s = 0; s < 4; ++s) quant_row(w[s], matrix, min(first + s, p.outputs - 1));
    GatedRows rows = {y, z, norm, factors, p.heads, p.width};
    float sums[4 * GEMV_ROWS];
    gemv<4>(sums, w, OUTPUTS, ROWS, inputs, rows, lane);
    UNROLL
    for (uint s = 0; s < 4; ++s) {
        UNROLL
        for (uint r = 0; r < GEMV_ROWS; ++r)
            if (s < OUTPUTS && r < ROWS && first + s < p.outputs && lane == s * GEMV_ROWS + r)
                out[ulong(r) * p.outputs + first + s] += sums[s * GEMV_ROWS + r];
    }
}
