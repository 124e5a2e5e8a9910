// NormSwiglu: a simdgroup for OUTPUTS outputs of both matrices, of one to four rows (quant/norm_swiglu.rs, gemv.h). The norm's
// factor is applied to the sums.
#include <metal_stdlib>
#include "portable.h"
#include "gemv_pair.h"
#include "swiglu.h"
using namespace metal;

FUNCTION_CONSTANT(uint, GATE_BITS, 0);
FUNCTION_CONSTANT(uint, GATE_GROUP, 1);
FUNCTION_CONSTANT(uint, UP_BITS, 2);
FUNCTION_CONSTANT(uint, UP_GROUP, 3);
FUNCTION_CONSTANT(uint, ROWS, 4);
FUNCTION_CONSTANT(uint, OUTPUTS, 5);
FUNCTION_CONSTANT(bool, NORM_IS_F32, 6);

struct NormSwigluParams { uint inputs; uint outputs; float eps; };

kernel void norm_swiglu(device const float* x [[buffer(0)]],
                        device const bfloat* norm [[buffer(1)]],
                        device const uint* gate_weight [[buffer(2)]],
                        device const bfloat* gate_scales [[buffer(3)]],
                        device const bfloat* gate_biases [[buffer(4)]],
                        device const uint* up_weight [[buffer(5)]],
                        device const bfloat* up_scales [[buffer(6)]],
                        device const bfloat* up_biases [[buffer(7)]],
                        device FINE* out [[buffer(8)]],
                        constant NormSwigluParams& p [[buffer(9)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint first = (group * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;
    const QuantMatrix gate = {gate_weight, gate_scales, gate_biases, p.inputs, GATE_BITS, GATE_GROUP};
    const QuantMatrix up = {up_weight, up_scales, up_biases, p.inputs, UP_BITS, UP_GROUP};
    NormRows rows = {x, norm, NORM_IS_F32, p.inputs, {}}, again = {x, norm, NORM_IS_F32, p.inputs, {}};
    float sums[4 * GEMV_ROWS];
    gemv_pair(sums, gate, up, first, OUTPUTS, p.outputs - 1, ROWS, rows, again, lane);
    SwigluOutput to = {out, p.outputs};
    UNROLL
    for (uint r = 0; r < GEMV_ROWS; ++r) {
        if (r >= ROWS) continue;
        const float scale = norm_scale(rows, r, p.eps);
        UNROLL
        for (uint s = 0; s < 2; ++s)
            if (s < OUTPUTS && first + s < p.outputs && lane == s * GEMV_ROWS + r)
                to.store(r, first + s, sums[2 * s * GEMV_ROWS + r] * scale, sums[(2 * s + 1) * GEMV_ROWS + r] * scale);
    }
}
