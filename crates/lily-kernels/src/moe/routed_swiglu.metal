// Norm, choice and first half of the experts for one to four rows: a threadgroup for some outputs of a pair (row, slot)
// (moe/routed_swiglu.rs). The norm's factor is applied to the products (gemv.h).
#include <metal_stdlib>
#include "portable.h"
#include "gates.h"
#include "gemv.h"
#include "top_k.h"
using namespace metal;

FUNCTION_CONSTANT(uint, GATE_BITS, 0);
FUNCTION_CONSTANT(uint, GATE_GROUP, 1);
FUNCTION_CONSTANT(uint, UP_BITS, 2);
FUNCTION_CONSTANT(uint, UP_GROUP, 3);
FUNCTION_CONSTANT(bool, NORM_IS_F32, 4);

struct RoutedSwigluParams { uint experts; uint top_k; uint outputs; uint inputs; float eps; };

kernel void routed_swiglu(device const float* x [[buffer(0)]],
                          device const bfloat* norm [[buffer(1)]],
                          device const float* logits [[buffer(2)]],
                          device const uint* gate_weight [[buffer(3)]],
                          device const bfloat* gate_scales [[buffer(4)]],
                          device const bfloat* gate_biases [[buffer(5)]],
                          device const uint* up_weight [[buffer(6)]],
                          device const bfloat* up_scales [[buffer(7)]],
                          device const bfloat* up_biases [[buffer(8)]],
                          device FINE* out [[buffer(9)]],
                          constant RoutedSwigluParams& p [[buffer(10)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint simdgroups [[simdgroups_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint OUTPUTS = 4; // of a simdgroup
    TG_ARRAY(uint, chosen, 1);
    const uint pair = group.y, row = pair / p.top_k, slot = pair % p.top_k;
    if (simd == 0) {
        uint expert, key;
        top_k_choose(logits + ulong(row) * p.experts, p.experts, slot + 1, lane, expert, key);
        if (lane == slot) chosen[0] = expert;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint first = (group.x * simdgroups + simd) * OUTPUTS;
    if (first >= p.outputs) return;

    const QuantMatrix gate = {gate_weight, gate_scales, gate_biases, p.inputs, GATE_BITS, GATE_GROUP};
    const QuantMatrix up = {up_weight, up_scales, up_biases, p.inputs, UP_BITS, UP_GROUP};
    const ulong start = ulong(chosen[0]) * p.outputs;
    QuantRow w[2 * OUTPUTS];
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s) {
        const ulong at = start + min(first + s, p.outputs - 1);
        quant_row(w[s], gate, at);
        quant_row(w[OUTPUTS + s], up, at);
    }
    device const float* xr = x + ulong(row) * p.inputs;
    NormRows rows = {xr, norm, NORM_IS_F32, p.inputs, {}};
    float sums[2 * OUTPUTS * GEMV_ROWS];
    if (GATE_BITS == UP_BITS && GATE_GROUP == UP_GROUP) {
        gemv<2 * OUTPUTS>(sums, w, 2 * OUTPUTS, 1, p.inputs, rows, lane);
    } else {
        gemv<OUTPUTS>(sums, w, OUTPUTS, 1, p.inputs, rows, lane);
        NormRows again = {xr, norm, NORM_IS_F32, p.inputs, {}};
        gemv<OUTPUTS>(sums + OUTPUTS * GEMV_ROWS, w + OUTPUTS, OUTPUTS, 1, p.inputs, again, lane);
    }
    const float scale = norm_scale(rows, 0, p.eps);
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s)
        if (lane == s && first + s < p.outputs) {
            const float g = scale * sums[s * GEMV_ROWS], u = scale * sums[(OUTPUTS + s) * GEMV_ROWS];
            out[ulong(pair) * p.outputs + first + s] = fine_of(silu(g) * u);
        }
}
