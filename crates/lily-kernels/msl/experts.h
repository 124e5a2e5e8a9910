// What grouped products share: tiles of pairs (row, slot) of one expert, as group_tiles lists them.
#pragma once
#include "gemm.h"

/// A tile: its expert, its first place in `order`, its rows: `{tiles[1 + 3 * t], tiles[2 + 3 * t], tiles[3 + 3 * t]}`.
struct ExpertTile { uint expert, first, rows; };

/// Rows of x by place in `order`, or through it: pair p belongs to row p / top_k.
struct ExpertRows {
    device const FINE* x;
    device const uint* order;
    uint cols, first, top_k;
    bool gather;
    device const FINE* row(uint i) { return x + ulong(gather ? order[first + i] / top_k : first + i) * cols; }
};

constant constexpr uint SCATTER_NONE = 0, SCATTER_PAIRS = 1, SCATTER_WEIGHTED = 2;

/// Where a product's rows go: `places` and `factors` hold a tile's rows, as expert_places writes them.
struct ExpertOutput {
    device FINE* out;
    threadgroup const uint* places;
    threadgroup const float* factors;
    uint outputs, scatter;
    void store(uint r, uint o, float v) {
        out[ulong(places[r]) * outputs + o] = fine_of(scatter == SCATTER_WEIGHTED ? v * factors[r] : v);
    }
};
/// By all threads; the barriers of gemm stand between this and the first store.
inline void expert_places(threadgroup uint* places, threadgroup float* factors, thread const ExpertTile& tile,
                          device const uint* order, device const float* weights, uint scatter, uint thread_index) {
    if (thread_index >= tile.rows) return;
    const uint place = tile.first + thread_index, p = scatter == SCATTER_NONE ? place : order[place];
    places[thread_index] = p;
    if (scatter == SCATTER_WEIGHTED) factors[thread_index] = weights[p];
}

/// The product of a tile, as high as its rows need.
template <uint H, class W>
inline void expert_product_of(threadgroup uint4* memory, thread ExpertRows& x, thread W& w, thread ExpertOutput& out, uint rows,
                              uint cols, uint col, uint outputs, uint thread_index, uint threads) {
    const uint simd = thread_index / 32;
    TileC sums[H];
    gemm<H>(sums, memory, x, w, rows, cols, col + simd * 32 < outputs, thread_index, threads);
    gemm_store<H>(sums, memory, 0, rows, col, outputs, out, simd, thread_index % 32);
}
template <class W>
inline void expert_product(threadgroup uint4* memory, thread ExpertRows& x, thread W& w, thread ExpertOutput& out, uint rows, uint largest,
                           uint cols, uint col, uint outputs, uint thread_index, uint threads) {
    if (largest == 16 || rows <= 16)
        expert_product_of<1>(memory, x, w, out, rows, cols, col, outputs, thread_index, threads);
    else if (largest == 32 || rows <= 32)
        expert_product_of<2>(memory, x, w, out, rows, cols, col, outputs, thread_index, threads);
    else
        expert_product_of<4>(memory, x, w, out, rows, cols, col, outputs, thread_index, threads);
}
