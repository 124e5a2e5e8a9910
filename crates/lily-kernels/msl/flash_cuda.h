// The CUDA body of flash_tiles.h: tiles of keys and values in shared memory, two barriers a tile.
#pragma once

/// Element `col`, a multiple of 8, of a row of a tile: pieces of 16 bytes are exchanged within a row so that eight rows of one column lie in
/// different banks.
inline ACT* flash_at(ACT* tile, uint row, uint col) { return tile + row * MOST_WIDTH + (col / 8 ^ row % 8) * 8; }

/// Begins to copy 32 rows of the cache, of which `there` are there.
inline void flash_copy(const Flash& at, ACT* tile, const ACT* from, uint there, uint thread_index) {
    const uint padded = 2 * flash_half(at.width);
    if (at.width % 8 == 0) {
        UNROLL
        for (uint n = 0; n < FLASH_KEYS * MOST_WIDTH / 8 / FLASH_THREADS; ++n) {
            const uint row = (n * FLASH_THREADS + thread_index) / (MOST_WIDTH / 8), col = thread_index % (MOST_WIDTH / 8) * 8;
            if (col >= padded) continue;
            // With 0 bytes to read, zeros are written.
            const bool reads = row < there && col < at.width;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint(__cvta_generic_to_shared(flash_at(tile, row, col)))),
                         "l"(reads ? from + row * at.width + col : from), "r"(reads ? 16 : 0) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        return;
    }
    for (uint i = thread_index; i < FLASH_KEYS * padded; i += FLASH_THREADS) {
        const uint row = i / padded, e = i % padded;
        flash_at(tile, row, e / 8 * 8)[e % 8] = row < there && e < at.width ? from[row * at.width + e] : ACT(0.0f);
    }
}
/// All copies are there for all threads, and all threads are done with what they read before.
inline void flash_arrive() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

template <bool MASKED>
inline void flash_tile(const TileA* q, TileC* sum, TileSoft& soft, const Flash& at, ACT* keys, ACT* values, float* sent, float* received, uint key, uint end, uint thread_index, uint half_of) {
    const uint half_width = flash_half(at.width), lane = tile_lane(), first = half_of * half_width;
    flash_copy(at, values, at.values + cache_at(at.slots, at.slot, key, at.head, at.heads, at.width), min(FLASH_KEYS, end - key), thread_index);
    TileC scores;
    tile_zero(scores);
    UNROLL
    for (uint k = 0; k < 8; ++k) {
        if (k * 16 >= half_width) continue;
        TileB b;
        const uint row = lane / 16 * 8 + lane % 8, col = first + k * 16 + lane / 8 % 2 * 8;
        tile_load_blocks(b.r[0], flash_at(keys, row, col));
        tile_load_blocks(b.r[2], flash_at(keys, row + 16, col));
        tile_mma(scores, q[k], b);
    }
    tile_send(scores, sent);
    flash_arrive();
    if (key + FLASH_KEYS < end)
        flash_copy(at, keys, at.keys + cache_at(at.slots, at.slot, key + FLASH_KEYS, at.head, at.heads, at.width), min(FLASH_KEYS, end - key - FLASH_KEYS), thread_index);
    TileA weights[2];
    TileFade fade;
    if (tile_soften<MASKED>(weights, scores, soft, fade, at.scale, key, sent, received, sent)) {
        UNROLL
        for (uint n = 0; n < 4; ++n) if (n * 32 < half_width) tile_fade(sum[n], fade);
    }
    UNROLL
    for (uint n = 0; n < 4; ++n) {
        if (n * 32 >= half_width) continue;
        UNROLL
        for (uint k = 0; k < 2; ++k) {
            TileB b;
            const uint row = k * 16 + lane % 16, col = first + n * 32 + lane / 16 * 8;
            tile_load_blocks_t(b.r[0], flash_at(values, row, col));
            tile_load_blocks_t(b.r[2], flash_at(values, row, col + 16));
            tile_mma(sum[n], weights[k], b);
        }
    }
    flash_arrive();
}

inline void flash(const Flash& at, ACT* memory, uint thread_index, uint simd, uint lane) {
    ACT* keys = memory;
    ACT* values = memory + FLASH_TILE;
    float* exchange = (float*)(memory + 2 * FLASH_TILE);
    float* sent = exchange + simd * TILE_SCRATCH;
    float* received = exchange + (simd ^ 1) * TILE_SCRATCH;
    const uint block = simd / 2, half_of = simd % 2, count = flash_rows(at);
    TileA q[8];
    TileC sum[4];
    TileSoft soft;
    flash_start(q, sum, soft, at, values, thread_index, block, half_of);
    const uint end = flash_seen(at, count - 1), all_see = flash_seen(at, 0) / FLASH_KEYS * FLASH_KEYS;
    flash_copy(at, keys, at.keys + cache_at(at.slots, at.slot, 0, at.head, at.heads, at.width), min(FLASH_KEYS, end), thread_index);
    flash_arrive();
    for (uint key = 0; key < all_see; key += FLASH_KEYS) flash_tile<false>(q, sum, soft, at, keys, values, sent, received, key, end, thread_index, half_of);
    for (uint key = all_see; key < end; key += FLASH_KEYS) flash_tile<true>(q, sum, soft, at, keys, values, sent, received, key, end, thread_index, half_of);
    tile_soft_weights(soft, sent);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    FlashOut out = {&at, sent - block * 16};
    UNROLL
    for (uint n = 0; n < 4; ++n)
        if (n * 32 < flash_half(at.width))
            tile_each(sum[n], received, lane, block * 16, count, half_of * flash_half(at.width) + n * 32, min(at.width, (half_of + 1) * flash_half(at.width)), out);
}
