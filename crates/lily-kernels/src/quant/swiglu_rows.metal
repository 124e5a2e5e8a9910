// Swiglu of one to four rows: a simdgroup for OUTPUTS outputs of both matrices (quant/swiglu.rs, gemv.h).
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

struct SwigluRowsParams { uint inputs; uint outputs; };

kernel void swiglu_rows(device const FINE* x [[buffer(0)]],
                        device const uint* gate_weight [[buffer(1)]],
                        device const bfloat* gate_scales [[buffer(2)]],
                        device const bfloat* gate_biases [[buffer(3)]],
                        device const uint* up_weight [[buffer(4)]],
                        device const bfloat* up_scales [[buffer(5)]],
                        device const bfloat* up_biases [[buffer(6)]],
                        device FINE* out [[buffer(7)]],
                        constant SwigluRowsParams& p [[buffer(8)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint simdgroups [[simdgroups_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint first = (group * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;
    const QuantMatrix gate = {gate_weight, gate_scales, gate_biases, p.inputs, GATE_BITS, GATE_GROUP};
    const QuantMatrix up = {up_weight, up_scales, up_biases, p.inputs, UP_BITS, UP_GROUP};
    ActRows rows = {x, p.inputs};
    float sums[4 * GEMV_ROWS];
    gemv_pair(sums, gate, up, first, OUTPUTS, p.outputs - 1, ROWS, rows, rows, lane);
    SwigluOutput to = {out, p.outputs};
    UNROLL
    for (uint s = 0; s < 2; ++s) {
        UNROLL
        for (uint r = 0; r < GEMV_ROWS; ++r)
            if (s < OUTPUTS && r < ROWS && first + s < p.outputs && lane == s * GEMV_ROWS + r)
                to.store(r, first + s, sums[2 * s * GEMV_ROWS + r], sums[(2 * s + 1) * GEMV_ROWS + r]);
    }
}
