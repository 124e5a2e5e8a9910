// Pairs by expert and the tiles of the grouped products: a threadgroup an expert. Each counts what stands before its
// expert, so that none waits for another (moe/tiles.rs).
#include <metal_stdlib>
#include "portable.h"
using namespace metal;

struct GroupTilesParams { uint pairs; uint experts; uint max_tiles; uint largest; };

inline uint tile_height(uint rows, uint largest) { return min(rows <= 16 ? 16u : rows <= 32 ? 32u : 64u, largest); }

kernel void group_tiles(device const uint* ids [[buffer(0)]],
                        device uint* order [[buffer(1)]],
                        device uint* tiles [[buffer(2)]],
                        constant GroupTilesParams& p [[buffer(3)]],
                        uint expert [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    constexpr uint COUNTED = 1024;
    TG_ARRAY(atomic_uint, counts, COUNTED);
    TG_ARRAY(uint, below_of, 32); // pairs of lower experts, by simdgroup
    TG_ARRAY(uint, own_of, 32);   // of this expert
    TG_ARRAY(uint, tiles_of, 32); // tiles of lower experts

    // Each simdgroup has neighbouring pairs: `own_of` of the simdgroups before it is then where its pairs begin.
    const uint simds = threads / 32, share = (p.pairs + threads - 1) / threads * 32;
    const uint begin = simd * share, end = min(begin + share, p.pairs);
    uint below = 0, own = 0, lower_tiles = 0;
    for (uint base = 0; base == 0 || base < expert; base += COUNTED) {
        for (uint i = thread_index; i < COUNTED; i += threads) atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = begin + lane; i < end; i += 32) {
            const uint id = ids[i];
            if (base == 0) { below += id < expert; own += id == expert; }
            if (id < expert && id - base < COUNTED) atomic_fetch_add_explicit(&counts[id - base], 1u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < COUNTED; i += threads) {
            const uint rows = atomic_load_explicit(&counts[i], memory_order_relaxed), height = tile_height(rows, p.largest);
            lower_tiles += (rows + height - 1) / height;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    below = simd_sum(below);
    own = simd_sum(own);
    lower_tiles = simd_sum(lower_tiles);
    if (lane == 0) { below_of[simd] = below; own_of[simd] = own; tiles_of[simd] = lower_tiles; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint before = simd_sum(lane < simds ? below_of[lane] : 0u);
    const uint earlier = simd_sum(lane < simd ? own_of[lane] : 0u);
    const uint rows = simd_sum(lane < simds ? own_of[lane] : 0u);
    const uint first_tile = simd_sum(lane < simds ? tiles_of[lane] : 0u);

    uint place = before + earlier;
    for (uint i = begin; i < end; i += 32) {
        const bool here = i + lane < end && ids[i + lane] == expert;
        const uint votes = uint(ulong(simd_ballot(here)));
        if (here) order[place + popcount(votes & ((1u << lane) - 1))] = i + lane;
        place += popcount(votes);
    }

    const uint height = tile_height(rows, p.largest), last_tile = first_tile + (rows + height - 1) / height;
    for (uint t = first_tile + thread_index; t < last_tile; t += threads) {
        const uint done = (t - first_tile) * height;
        tiles[1 + 3 * t] = expert;
        tiles[2 + 3 * t] = before + done;
        tiles[3 + 3 * t] = min(height, rows - done);
    }
    if (expert + 1 == p.experts) {
        if (thread_index == 0) tiles[0] = last_tile;
        for (uint i = 3 * last_tile + thread_index; i < 3 * p.max_tiles; i += threads) tiles[1 + i] = 0;
    }
}
