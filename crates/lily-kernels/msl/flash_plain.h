// Attention of many rows in f32, without tiles: exact, not fast. A simdgroup has 8 rows; a lane has a key of each tile, then an element
// of every 32 of the values.
#pragma once
#include "flash.h"

constant constexpr uint FLASH_STEP = 32;
/// Floats of threadgroup memory: 32 elements of the rows, of the keys (33 apart, for the banks), and the weights.
constant constexpr uint FLASH_MEMORY = FLASH_ROWS * FLASH_STEP + FLASH_KEYS * (FLASH_STEP + 1) + FLASH_ROWS * FLASH_KEYS;

inline void flash(thread const Flash& at, threadgroup float* memory, uint thread_index, uint simd, uint lane) {
    threadgroup float* rows = memory;
    threadgroup float* keys = rows + FLASH_ROWS * FLASH_STEP;
    threadgroup float* weights = keys + FLASH_KEYS * (FLASH_STEP + 1);
    const uint count = flash_rows(at), end = flash_seen(at, count - 1);
    uint seen[8];
    float sum[8][MOST_WIDTH / 32], top[8], weight[8];
    UNROLL for (uint r = 0; r < 8; ++r) {
        seen[r] = flash_seen(at, simd * 8 + r);
        top[r] = minus_infinity();
        weight[r] = 0.0f;
        UNROLL for (uint c = 0; c < MOST_WIDTH / 32; ++c) sum[r][c] = 0.0f;
    }
    for (uint key = 0; key < end; key += FLASH_KEYS) {
        const ulong row = cache_at(at.slots, at.slot, key, at.head, at.heads, at.width);
        const uint there = min(FLASH_KEYS, end - key);
        float score[8];
        UNROLL for (uint r = 0; r < 8; ++r) score[r] = 0.0f;
        for (uint e = 0; e < at.width; e += FLASH_STEP) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = thread_index; i < FLASH_ROWS * FLASH_STEP; i += FLASH_THREADS) {
                const uint r = i / FLASH_STEP, n = e + i % FLASH_STEP;
                rows[i] = n < at.width ? float(at.q[flash_head(at, r) * at.width + n]) : 0.0f;
            }
            for (uint i = thread_index; i < FLASH_KEYS * FLASH_STEP; i += FLASH_THREADS) {
                const uint r = i / FLASH_STEP, n = e + i % FLASH_STEP;
                keys[r * (FLASH_STEP + 1) + i % FLASH_STEP] = r < there && n < at.width ? float(at.keys[row + r * at.width + n]) : 0.0f;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = 0; i < FLASH_STEP; ++i) {
                const float k = keys[lane * (FLASH_STEP + 1) + i];
                UNROLL for (uint r = 0; r < 8; ++r) score[r] = fma(rows[(simd * 8 + r) * FLASH_STEP + i], k, score[r]);
            }
        }
        UNROLL for (uint r = 0; r < 8; ++r) {
            const float own = key + lane < seen[r] ? score[r] * at.scale : minus_infinity();
            const float next = max(top[r], simd_max(own)), fade = precise::exp2(top[r] - next), p = precise::exp2(own - next);
            top[r] = next;
            weight[r] = fma(weight[r], fade, p);
            weights[(simd * 8 + r) * FLASH_KEYS + lane] = p;
            UNROLL for (uint c = 0; c < MOST_WIDTH / 32; ++c) sum[r][c] *= fade;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint j = 0; j < there; ++j) {
            UNROLL for (uint c = 0; c < MOST_WIDTH / 32; ++c) {
                const uint i = c * 32 + lane;
                const float v = i < at.width ? float(at.values[row + j * at.width + i]) : 0.0f;
                UNROLL for (uint r = 0; r < 8; ++r) sum[r][c] = fma(weights[(simd * 8 + r) * FLASH_KEYS + j], v, sum[r][c]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    UNROLL for (uint r = 0; r < 8; ++r) {
        const float all = simd_sum(weight[r]);
        UNROLL for (uint c = 0; c < MOST_WIDTH / 32; ++c)
            if (simd * 8 + r < count && c * 32 + lane < at.width) flash_put(at, simd * 8 + r, c * 32 + lane, sum[r][c] / all);
    }
}
