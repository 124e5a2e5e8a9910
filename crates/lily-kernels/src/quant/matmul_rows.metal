// Matmul of one to four rows: a simdgroup for OUTPUTS outputs (quant/matmul.rs, gemv.h). Each weight is read once.
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

struct MatmulRowsParams { uint inputs; uint outputs; uint width0; uint width1; uint width2; };

kernel void matmul_rows(device const FINE* x [[buffer(0)]],
                        device const uint* weight [[buffer(1)]],
                        device const bfloat* scales [[buffer(2)]],
                        device const bfloat* biases [[buffer(3)]],
                        device ACT* out [[buffer(4)]],
                        constant MatmulRowsParams& p [[buffer(5)]],
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
    ActRows rows = {x, p.inputs};
    float sums[4 * GEMV_ROWS];
    gemv<4>(sums, w, OUTPUTS, ROWS, p.inputs, rows, lane);
    PartOutput to = {out, OUT, ROWS, p.outputs, p.width0, p.width1, p.width2};
    UNROLL
    for (uint s = 0; s < 4; ++s) {
        UNROLL
        for (uint r = 0; r < GEMV_ROWS; ++r)
            if (s < OUTPUTS && r < ROWS && first + s < p.outputs && lane == s * GEMV_ROWS + r)
                to.store(r, first + s, sums[s * GEMV_ROWS + r]);
    }
}
