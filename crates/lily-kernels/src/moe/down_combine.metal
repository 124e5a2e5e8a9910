// Second half of the experts and of the shared expert, and their weighted sum into the residual, for one to four rows: a
// threadgroup for some outputs of a row (moe/down_combine.rs). Its simdgroups share the experts; one of them chooses while the
// last one already works on the shared expert.
#include <metal_stdlib>
#include "portable.h"
#include "gates.h"
#include "gemv.h"
#include "top_k.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);
FUNCTION_CONSTANT(uint, SHARED_BITS, 2);
FUNCTION_CONSTANT(uint, SHARED_GROUP, 3);

struct DownCombineParams { uint experts; uint top_k; uint outputs; uint inputs; uint shared_inputs; };

constant constexpr uint OUTPUTS = 4; // of a threadgroup

/// The products of `act` with OUTPUTS rows of a matrix from `row`, of which `rows` are there, into `products`.
inline void down_products(threadgroup float* products, thread const QuantMatrix& matrix, ulong row, uint rows, device const FINE* act,
                          uint lane) {
    QuantRow w[OUTPUTS];
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s) quant_row(w[s], matrix, row + min(s, rows - 1));
    ActRows x = {act, matrix.cols};
    float sums[OUTPUTS * GEMV_ROWS];
    gemv<OUTPUTS>(sums, w, OUTPUTS, 1, matrix.cols, x, lane);
    UNROLL
    for (uint s = 0; s < OUTPUTS; ++s) if (lane == s) products[s] = sums[s * GEMV_ROWS];
}

kernel void down_combine(device const FINE* act [[buffer(0)]],
                         device const float* logits [[buffer(1)]],
                         device const FINE* shared_act [[buffer(2)]],
                         device const float* shared_gate [[buffer(3)]],
                         device const uint* down_weight [[buffer(4)]],
                         device const bfloat* down_scales [[buffer(5)]],
                         device const bfloat* down_biases [[buffer(6)]],
                         device const uint* shared_weight [[buffer(7)]],
                         device const bfloat* shared_scales [[buffer(8)]],
                         device const bfloat* shared_biases [[buffer(9)]],
                         device float* out [[buffer(10)]],
                         constant DownCombineParams& p [[buffer(11)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint simdgroups [[simdgroups_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint, chosen, 32);
    TG_ARRAY(float, weights, 32);
    TG_ARRAY(float, products, 33 * OUTPUTS); // of the slots, then of the shared expert
    const uint row = group.y, first = group.x * OUTPUTS, rows = min(OUTPUTS, p.outputs - first);
    if (simd == 0) {
        uint expert, key;
        top_k_choose(logits + ulong(row) * p.experts, p.experts, p.top_k, lane, expert, key);
        chosen[lane] = expert;
        weights[lane] = top_k_weight(key, p.top_k, lane);
    }
    if (simd + 1 == simdgroups) {
        const QuantMatrix shared = {shared_weight, shared_scales, shared_biases, p.shared_inputs, SHARED_BITS, SHARED_GROUP};
        down_products(products + p.top_k * OUTPUTS, shared, first, rows, shared_act + ulong(row) * p.shared_inputs, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const QuantMatrix down = {down_weight, down_scales, down_biases, p.inputs, BITS, GROUP};
    for (uint slot = simd; slot < p.top_k; slot += simdgroups)
        down_products(products + slot * OUTPUTS, down, ulong(chosen[slot]) * p.outputs + first, rows,
                      act + (ulong(row) * p.top_k + slot) * p.inputs, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0 && lane < rows) {
        float sum = 0.0f;
        for (uint slot = 0; slot < p.top_k; ++slot) sum = fma(weights[slot], products[slot * OUTPUTS + lane], sum);
        sum = fma(sigmoid(shared_gate[row]), products[p.top_k * OUTPUTS + lane], sum);
        out[ulong(row) * p.outputs + first + lane] += sum;
    }
}
