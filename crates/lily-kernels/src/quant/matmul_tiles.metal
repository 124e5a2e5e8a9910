// Matmul of any number of rows: matrix tiles of HEIGHT rows by 32 columns a simdgroup (quant/matmul.rs, gemm.h).
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#include "gemm.h"
#include "output.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);
FUNCTION_CONSTANT(uint, HEIGHT, 2);
FUNCTION_CONSTANT(uint, OUT, 3);

struct MatmulTilesParams { uint rows; uint inputs; uint outputs; uint width0; uint width1; uint width2; };

kernel void matmul_tiles(device const FINE* x [[buffer(0)]],
                         device const uint* weight [[buffer(1)]],
                         device const bfloat* scales [[buffer(2)]],
                         device const bfloat* biases [[buffer(3)]],
                         device ACT* out [[buffer(4)]],
                         constant MatmulTilesParams& p [[buffer(5)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint4, memory, GEMM_MEMORY);
    const uint threads = simdgroups * 32, col = group.x * threads, row = group.y * HEIGHT, rows = min(p.rows - row, HEIGHT);
    const QuantMatrix matrix = {weight, scales, biases, p.inputs, BITS, GROUP};
    GemmQuant w = {};
    quant_row(w.row, matrix, min(col + thread_index, p.outputs - 1));
    GemmRows a = {x, p.inputs, row};
    PartOutput to = {out, OUT, p.rows, p.outputs, p.width0, p.width1, p.width2};
    const bool busy = col + simd * 32 < p.outputs;
    if (HEIGHT == 16) {
        TileC sums[1];
        gemm<1>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store<1>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    } else if (HEIGHT == 32) {
        TileC sums[2];
        gemm<2>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store<2>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    } else {
        TileC sums[4];
        gemm<4>(sums, memory, a, w, rows, p.inputs, busy, thread_index, threads);
        gemm_store<4>(sums, memory, row, row + rows, col, p.outputs, to, simd, lane);
    }
}
