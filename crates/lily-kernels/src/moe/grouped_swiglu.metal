// First half of the experts in tiles: a threadgroup for a tile of an expert's rows and 64 outputs, gate and up side by side
// (moe/grouped_swiglu.rs, gemm.h). It computes no more rows than the tile has, in steps of 16, 32 or 64.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#include "experts.h"
#include "gates.h"
using namespace metal;

FUNCTION_CONSTANT(uint, GATE_BITS, 0);
FUNCTION_CONSTANT(uint, GATE_GROUP, 1);
FUNCTION_CONSTANT(uint, UP_BITS, 2);
FUNCTION_CONSTANT(uint, UP_GROUP, 3);
FUNCTION_CONSTANT(uint, LARGEST, 4);

struct GroupedSwigluParams { uint top_k; uint outputs; uint inputs; uint blocks; };

struct SwigluOutput {
    device FINE* out;
    uint outputs;
    void store(uint r, uint o, float g, float u) { out[ulong(r) * outputs + o] = fine_of(silu(g) * u); }
};

template <uint H>
inline void grouped_swiglu_tile(threadgroup uint4* memory, thread ExpertRows& x, thread GemmQuant& w, thread SwigluOutput& out,
                                uint rows, uint cols, uint col, uint outputs, uint thread_index, uint threads) {
    const uint simd = thread_index / 32;
    TileC sums[H];
    gemm<H>(sums, memory, x, w, rows, cols, col + simd * 16 < outputs, thread_index, threads);
    gemm_store_pairs<H>(sums, memory, 0, rows, col, outputs, out, simd, thread_index % 32);
}

kernel void grouped_swiglu(device const FINE* x [[buffer(0)]],
                           device const uint* order [[buffer(1)]],
                           device const uint* tiles [[buffer(2)]],
                           device const uint* gate_weight [[buffer(3)]],
                           device const bfloat* gate_scales [[buffer(4)]],
                           device const bfloat* gate_biases [[buffer(5)]],
                           device const uint* up_weight [[buffer(6)]],
                           device const bfloat* up_scales [[buffer(7)]],
                           device const bfloat* up_biases [[buffer(8)]],
                           device FINE* out [[buffer(9)]],
                           constant GroupedSwigluParams& p [[buffer(10)]],
                           uint group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
    TG_ARRAY(uint4, memory, GEMM_MEMORY);
    const uint number = group / p.blocks;
    if (number >= tiles[0]) return;
    const ExpertTile tile = {tiles[1 + 3 * number], tiles[2 + 3 * number], tiles[3 + 3 * number]};
    const uint col = group % p.blocks * (threads / 2);
    // This thread's row of weights.
    const bool second = gemm_pair_second(thread_index);
    const QuantMatrix matrix = {second ? up_weight : gate_weight, second ? up_scales : gate_scales, second ? up_biases : gate_biases,
                                p.inputs, second ? UP_BITS : GATE_BITS, second ? UP_GROUP : GATE_GROUP};
    const uint output = min(col + gemm_pair_output(thread_index), p.outputs - 1);
    GemmQuant w = {};
    quant_row(w.row, matrix, ulong(tile.expert) * p.outputs + output);
    ExpertRows rows = {x, order, p.inputs, tile.first, p.top_k, true};
    SwigluOutput to = {out + ulong(tile.first) * p.outputs, p.outputs};
    if (LARGEST == 16 || tile.rows <= 16)
        grouped_swiglu_tile<1>(memory, rows, w, to, tile.rows, p.inputs, col, p.outputs, thread_index, threads);
    else if (LARGEST == 32 || tile.rows <= 32)
        grouped_swiglu_tile<2>(memory, rows, w, to, tile.rows, p.inputs, col, p.outputs, thread_index, threads);
    else
        grouped_swiglu_tile<4>(memory, rows, w, to, tile.rows, p.inputs, col, p.outputs, thread_index, threads);
}
