// A product with the chosen experts' matrices for one to four rows: a simdgroup for some outputs of a pair (row, slot)
// (moe/routed_matmul.rs).
#include <metal_stdlib>
#include "portable.h"
#include "gemv.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);

struct RoutedMatmulParams { uint outputs; uint inputs; uint pairs_per_x; };

kernel void routed_matmul(device const FINE* x [[buffer(0)]],
                          device const uint* ids [[buffer(1)]],
                          device const uint* weight [[buffer(2)]],
                          device const bfloat* scales [[buffer(3)]],
                          device const bfloat* biases [[buffer(4)]],
                          device FINE* out [[buffer(5)]],
                          constant RoutedMatmulParams& p [[buffer(6)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint simdgroups [[simdgroups_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint OUTPUTS = 4; // of a simdgroup
    const uint pair = group.y, first = (group.x * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;
    const QuantMatrix matrix = {weight, scales, biases, p.inputs, BITS, GROUP};
    const ulong start = ulong(ids[pair]) * p.outputs;
    QuantRow w[OUTPUTS];
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s) quant_row(w[s], matrix, start + min(first + s, p.outputs - 1));
    ActRows rows = {x + ulong(pair / p.pairs_per_x) * p.inputs, p.inputs};
    float sums[OUTPUTS * GEMV_ROWS];
    gemv<OUTPUTS>(sums, w, OUTPUTS, 1, p.inputs, rows, lane);
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s)
        if (lane == s && first + s < p.outputs) out[ulong(pair) * p.outputs + first + s] = fine_of(sums[s * GEMV_ROWS]);
}
