// A product with the experts' matrices of activations in tiles: grouped_matmul after the matrices were dequantized into memory
// (moe/grouped_dense.rs).
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
#include "experts.h"
using namespace metal;

FUNCTION_CONSTANT(uint, LARGEST, 0);
FUNCTION_CONSTANT(bool, GATHER, 1);
FUNCTION_CONSTANT(uint, SCATTER, 2);

struct GroupedDenseParams { uint top_k; uint outputs; uint inputs; uint blocks; };

kernel void grouped_dense(device const FINE* x [[buffer(0)]],
                          device const uint* order [[buffer(1)]],
                          device const uint* tiles [[buffer(2)]],
                          device const float* weights [[buffer(3)]],
                          device const FINE* weight [[buffer(4)]],
                          device FINE* out [[buffer(5)]],
                          constant GroupedDenseParams& p [[buffer(6)]],
                          uint group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]]) {
    TG_ARRAY(uint4, memory, GEMM_MEMORY);
    TG_ARRAY(uint, places, 64);
    TG_ARRAY(float, factors, 64);
    const uint number = group / p.blocks;
    if (number >= tiles[0]) return;
    const ExpertTile tile = {tiles[1 + 3 * number], tiles[2 + 3 * number], tiles[3 + 3 * number]};
    expert_places(places, factors, tile, order, weights, SCATTER, thread_index);
    const uint col = group % p.blocks * threads;
    // This thread's row of weights.
    const ulong row = ulong(tile.expert) * p.outputs + min(col + thread_index, p.outputs - 1);
    GemmPlain w = {weight + row * p.inputs, {}};
    ExpertRows rows = {x, order, p.inputs, tile.first, p.top_k, GATHER};
    ExpertOutput to = {out, places, factors, p.outputs, SCATTER};
    expert_product(memory, rows, w, to, tile.rows, LARGEST, p.inputs, col, p.outputs, thread_index, threads);
}
