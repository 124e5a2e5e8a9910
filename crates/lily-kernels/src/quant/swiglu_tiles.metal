// Swiglu of any number of rows: matrix tiles of HEIGHT rows by 16 outputs a simdgroup, gate and up side by side
// (quant/swiglu.rs, gemm.h).
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#include "gemm.h"
#include "swiglu.h"
using namespace metal;

FUNCTION_CONSTANT(uint, GATE_BITS, 0);
FUNCTION_CONSTANT(uint, GATE_GROUP, 1);
FUNCTION_CONSTANT(uint, UP_BITS, 2);
FUNCTION_CONSTANT(uint, UP_GROUP, 3);
FUNCTION_CONSTANT(uint, HEIGHT, 4);

struct SwigluTilesParams { uint rows; uint inputs; uint outputs; };

kernel void swiglu_tiles(device const FINE* x [[buffer(0)]],
                         device const uint* gate_weight [[buffer(1)]],
                         device const bfloat* gate_scales [[buffer(2)]],
                         device const bfloat* gate_biases [[buffer(3)]],
                         device const uint* up_weight [[buffer(4)]],
                         device const bfloat* up_scales [[buffer(5)]],
                         device const bfloat* up_biases [[buffer(6)]],
                         device FINE* out [[buffer(7)]],
                         constant SwigluTilesParams& p [[buffer(8)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint4, memory, GEMM_MEMORY);
    const uint threads = simdgroups * 32, col = group.x * simdgroups * 16, row = group.y * HEIGHT, rows = min(p.rows - row, HEIGHT);
    const QuantMatrix gate = {gate_weight, gate_scales, gate_biases, p.inputs, GATE_BITS, GATE_GROUP};
    const QuantMatrix up = {up_weight, up_scales, up_biases, p.inputs, UP_BITS, UP_GROUP};
    const uint output = min(col + gemm_pair_output(thread_index), p.outputs - 1);
    GemmQuant w = {};
    if (gemm_pair_second(thread_index)) quant_row(w.row, up, output);
    else quant_row(w.row, gate, output);
    GemmRows a = {x, p.inputs, row};
    SwigluOutput to = {out, p.outputs};
    const bool busy = col + simd * 16 < p.outputs;
    if (HEIGHT == 16) {
        TileC sums[1];
        gemm<1>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store_pairs<1>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    } else if (HEIGHT == 32) {
        TileC sums[2];
        gemm<2>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store_pairs<2>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    } else {
        TileC sums[4];
        gemm<4>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store_pairs<4>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    }
}
