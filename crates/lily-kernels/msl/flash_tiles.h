// Attention of many rows on tiles. Of eight simdgroups two share 16 rows: each has half of the elements of a head, makes its part of
// the scores and its part of the sums. They exchange the parts of the scores, 16 by 32, through threadgroup memory; both then know
// all of them, and keep the weights in registers (or in a corner of their own where registers cannot be read).
//
// Keys and values of a tile come straight from the cache where every row sees the whole tile, and each of the four pairs reads them
// again, from the nearest cache. A tile on the diagonal, or heads that are no multiple of 64, come through threadgroup memory in
// pieces of 32 elements of each half, zeros for what is not there. On CUDA, whose matrix units want their operands from shared
// memory, all tiles come that way: whole, by asynchronous copies, keys of the next tile under the sums of this one.
#pragma once
#include "flash.h"
#include "tile_softmax.h"

/// A piece of rows: 32 elements of each half side by side, 8 more for the banks.
constant constexpr uint FLASH_PIECE_LD = 72;
#ifdef __CUDACC__
/// ACT of threadgroup memory: a tile of keys, one of values, and what simdgroups exchange. 48 KiB.
constant constexpr uint FLASH_TILE = FLASH_KEYS * MOST_WIDTH, FLASH_MEMORY = 2 * FLASH_TILE + 8 * TILE_SCRATCH * 2;
#else
/// ACT of threadgroup memory: a piece of keys or values, what simdgroups exchange, and their corners. 28.5 KiB.
constant constexpr uint FLASH_PIECE = FLASH_KEYS * FLASH_PIECE_LD, FLASH_MEMORY = FLASH_PIECE + 8 * TILE_SCRATCH * 2 + 8 * TILE_SCRATCH;
#endif

/// Elements of each half: a multiple of 32.
inline uint flash_half(uint width) { return (width + 63) / 64 * 32; }
/// The element in column `col` of piece `piece`.
inline uint flash_element(uint piece, uint col, uint half_width) { return col / 32 * half_width + piece * 32 + col % 32; }

/// Rows of a piece of q.
inline void flash_stage_rows(thread const Flash& at, threadgroup ACT* to, uint piece, uint thread_index) {
    for (uint i = thread_index; i < FLASH_ROWS * 64; i += FLASH_THREADS) {
        const uint row = i / 64, e = flash_element(piece, i % 64, flash_half(at.width));
        to[row * FLASH_PIECE_LD + i % 64] = e < at.width ? at.q[flash_head(at, row) * at.width + e] : ACT(0.0f);
    }
}

inline void flash_start(thread TileA* q, thread TileC* sum, thread TileSoft& soft, thread const Flash& at, threadgroup ACT* stage, uint thread_index, uint block, uint half_of) {
    UNROLL for (uint n = 0; n < 4; ++n) tile_zero(sum[n]);
    tile_soft_start(soft);
    UNROLL for (uint n = 0; n < TILE_SOFT_ROWS; ++n) soft.seen[n] = flash_seen(at, block * 16 + tile_soft_row(n));
    UNROLL for (uint piece = 0; piece < 4; ++piece) {
        if (piece * 32 >= flash_half(at.width)) continue;
        flash_stage_rows(at, stage, piece, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (uint k = 0; k < 2; ++k) tile_load_a(q[2 * piece + k], stage + block * 16 * FLASH_PIECE_LD + half_of * 32 + k * 16, FLASH_PIECE_LD);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

/// Hands out what is finished.
struct FlashOut {
    thread const Flash* at;
    threadgroup const float* weights;
    void store(uint row, uint i, float value) { flash_put(*at, row, i, value / weights[row]); }
};

#ifdef __CUDACC__
#include "flash_cuda.h"
#else
/// A piece of 32 rows of the cache.
inline void flash_stage(thread const Flash& at, threadgroup ACT* to, device const ACT* from, uint there, uint piece, uint thread_index) {
    for (uint i = thread_index; i < FLASH_KEYS * 64; i += FLASH_THREADS) {
        const uint row = i / 64, e = flash_element(piece, i % 64, flash_half(at.width));
        to[row * FLASH_PIECE_LD + i % 64] = row < there && e < at.width ? from[row * at.width + e] : ACT(0.0f);
    }
}

template <bool WHOLE>
inline void flash_tile(thread const TileA* q, thread TileC* sum, thread TileSoft& soft, thread const Flash& at, threadgroup ACT* stage, threadgroup float* sent, threadgroup float* received,
                       threadgroup float* corner, uint key, uint there, uint thread_index, uint half_of) {
    const uint half_width = flash_half(at.width);
    const ulong row = cache_at(at.slots, at.slot, key, at.head, at.heads, at.width);
    TileC scores;
    tile_zero(scores);
    UNROLL for (uint piece = 0; piece < 4; ++piece) {
        if (piece * 32 >= half_width) continue;
        if (!WHOLE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            flash_stage(at, stage, at.keys + row, there, piece, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        UNROLL for (uint k = 0; k < 2; ++k) {
            TileB b;
            if (WHOLE) tile_fetch_b(b, at.keys + row + half_of * half_width + piece * 32 + k * 16, at.width);
            else tile_load_b(b, stage + half_of * 32 + k * 16, FLASH_PIECE_LD);
            tile_mma(scores, q[2 * piece + k], b);
        }
    }
    // The other simdgroup has read what it was sent before.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile_send(scores, sent);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    TileA weights[2];
    TileFade fade;
    if (tile_soften<!WHOLE>(weights, scores, soft, fade, at.scale, key, sent, received, corner)) {
        UNROLL for (uint n = 0; n < 4; ++n) if (n * 32 < half_width) tile_fade(sum[n], fade);
    }
    UNROLL for (uint piece = 0; piece < 4; ++piece) {
        if (piece * 32 >= half_width) continue;
        if (!WHOLE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            flash_stage(at, stage, at.values + row, there, piece, thread_index);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        UNROLL for (uint k = 0; k < 2; ++k) {
            TileB b;
            if (WHOLE) tile_fetch_bt(b, at.values + row + k * 16 * at.width + half_of * half_width + piece * 32, at.width);
            else tile_load_bt(b, stage + k * 16 * FLASH_PIECE_LD + half_of * 32, FLASH_PIECE_LD);
            tile_mma(sum[piece], weights[k], b);
        }
    }
}

inline void flash(thread const Flash& at, threadgroup ACT* memory, uint thread_index, uint simd, uint lane) {
    threadgroup ACT* stage = memory;
    threadgroup float* exchange = (threadgroup float*)(memory + FLASH_PIECE);
    threadgroup float* corner = exchange + 8 * TILE_SCRATCH + simd * TILE_SCRATCH / 2;
    threadgroup float* sent = exchange + simd * TILE_SCRATCH;
    threadgroup float* received = exchange + (simd ^ 1) * TILE_SCRATCH;
    const uint block = simd / 2, half_of = simd % 2, count = flash_rows(at);
    TileA q[8];
    TileC sum[4];
    TileSoft soft;
    // The first rows, 64 of them, reach from the piece into what is exchanged later.
    flash_start(q, sum, soft, at, stage, thread_index, block, half_of);
    const uint end = flash_seen(at, count - 1), all_see = at.width % 64 == 0 ? flash_seen(at, 0) / FLASH_KEYS * FLASH_KEYS : 0;
    for (uint key = 0; key < all_see; key += FLASH_KEYS)
        flash_tile<true>(q, sum, soft, at, stage, sent, received, corner, key, FLASH_KEYS, thread_index, half_of);
    for (uint key = all_see; key < end; key += FLASH_KEYS)
        flash_tile<false>(q, sum, soft, at, stage, sent, received, corner, key, min(FLASH_KEYS, end - key), thread_index, half_of);
    // Both simdgroups of a pair have the same weights; each keeps its own.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile_soft_weights(soft, corner);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    FlashOut out = {&at, corner - block * 16};
    UNROLL for (uint n = 0; n < 4; ++n)
        if (n * 32 < flash_half(at.width))
            tile_each(sum[n], sent, lane, block * 16, count, half_of * flash_half(at.width) + n * 32, min(at.width, (half_of + 1) * flash_half(at.width)), out);
}
#endif
