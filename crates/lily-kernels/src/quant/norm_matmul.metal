// NormMatmul: a simdgroup for OUTPUTS outputs of one to four rows (quant/norm_matmul.rs, gemv.h). The norm's factor is applied
// to the sums.
#include <metal_stdlib>
#include "portable.h"
#include "gemv.h"
#include "output.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);
FUNCTION_CONSTANT(uint, ROWS, 2);
FUNCTION_CONSTANT(uint, OUTPUTS, 3);
FUNCTION_CONSTANT(uint, OUT, 4);
FUNCTION_CONSTANT(bool, NORM_IS_F32, 5);

struct NormMatmulParams { uint inputs; uint outputs; uint width0; uint width1; uint width2; float eps; };

kernel void norm_matmul(device const float* x [[buffer(0)]],
                        device const bfloat* norm [[buffer(1)]],
                        device const uint* weight [[buffer(2)]],
                        device const bfloat* scales [[buffer(3)]],
                        device const bfloat* biases [[buffer(4)]],
                        device ACT* out [[buffer(5)]],
                        constant NormMatmulParams& p [[buffer(6)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint first = (group * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;
    const QuantMatrix matrix = {weight, scales, biases, p.inputs, BITS, GROUP};
    QuantRow w[4];
    UNROLL
    for (uint s = 0; s < 4; ++s) quant_row(w[s], matrix, min(first + s, p.outputs - 1));
    NormRows rows = {x, norm, NORM_IS_F32, p.inputs, {}};
    float sums[4 * GEMV_ROWS];
    gemv<4>(sums, w, OUTPUTS, ROWS, p.inputs, rows, lane);
    PartOutput to = {out, OUT, ROWS, p.outputs, p.width0, p.width1, p.width2};
    UNROLL
    for (uint r = 0; r < GEMV_ROWS; ++r) {
        if (r >= ROWS) continue;
        const float scale = norm_scale(rows, r, p.eps);
        UNROLL
        for (uint s = 0; s < 4; ++s)
            if (s < OUTPUTS && first + s < p.outputs && lane == s * GEMV_ROWS + r)
                to.store(r, first + s, sums[s * GEMV_ROWS + r] * scale);
    }
}
