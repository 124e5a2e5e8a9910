// What attention does with tiles beyond tile.h, for 16-bit activations; which lane holds what stays hidden here too.
//
//   tile_load_bt(b, p, ld)       B from its transpose in threadgroup memory: 16 rows of 32
//   tile_fetch_b, tile_fetch_bt  the same two from device memory (not CUDA)
//   tile_send(c, mine)           leaves C for the simdgroup that has the other half of its sums, in TILE_SCRATCH floats
//   tile_soften<MASKED>(p, c, soft, fade, scale, key, mine, theirs, scratch)
//                                C + theirs are scores of 16 rows and 32 keys, the first one `key`. p becomes 2^(scale * score - top) as two
//                                A side by side, 0 for keys that a row does not see (only checked if MASKED). Returns true if some
//                                row's `top` has grown: sums made before are then to be multiplied by `fade`
//   tile_fade(c, fade)           does that, with a C of the same rows
//   tile_soft_row(n)             the lane's n-th row of TILE_SOFT_ROWS, for soft.seen[n]: how many keys it sees
//   tile_soft_weights(soft, to)  the sums of each row's weights, to 16 floats
//
// `scratch` is the simdgroup's own, 1024 bytes. Between tile_send and tile_soften, and between that and the next tile_send, all threads
// pass a barrier. `top` follows the largest score only when that is more than 8 above: weights stay below 2^8, and most tiles
// need no fade. It depends on the row alone, so a row's bits do not depend on the others.
#pragma once
// Keys and values are of ACT.
#define TILE ACT
#ifdef ACT_IS_F16
#define TILE_IS_F16
#endif
#include "tile.h"
/// Scores below all others, but finite: nothing here is infinite or NaN.
constant constexpr float TILE_UNSEEN = -1e30f;
constant constexpr float TILE_SLACK = 8.0f;

#if defined(__CUDACC__) || defined(TILE_MPP)
// A lane holds two rows of C, and all lanes of a row the same.
constant constexpr uint TILE_SOFT_ROWS = 2;
struct TileSoft { float top[2]; float weight[2]; uint seen[2]; };
struct TileFade { float f[2]; };
#ifdef __CUDACC__
constant constexpr uint TILE_APART_0 = 1, TILE_APART_1 = 2;
inline uint tile_soft_row(uint n) { return tile_row(2 * n); }
#define TILE_AT(c, i) c.e[(i) / 4][(i) % 4]
#define TILE_ROW_OF(i) ((i) / 2 % 2)
inline uint tile_key(uint i) { return tile_col(i / 4, i % 4); }
/// As tile_load_blocks, each block transposed.
inline void tile_load_blocks_t(uint* r, const ACT* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(uint(__cvta_generic_to_shared(p))) : "memory");
}
inline void tile_load_bt(TileB& b, const ACT* p, uint ld) {
    const uint lane = tile_lane();
    p += lane % 16 * ld + lane / 16 * 8;
    tile_load_blocks_t(b.r[0], p);
    tile_load_blocks_t(b.r[2], p + 16);
}
#ifdef ACT_IS_F16
#define TILE_PACK "cvt.rn.f16x2.f32"
#else
#define TILE_PACK "cvt.rn.bf16x2.f32"
#endif
inline uint tile_both(float low, float high) {
    uint both;
    asm(TILE_PACK " %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
inline void tile_as_a(TileA& a, const TileC& c, uint k) {
    for (uint i = 0; i < 4; ++i) a.r[i] = tile_both(c.e[2 * k + i / 2][i % 2 * 2], c.e[2 * k + i / 2][i % 2 * 2 + 1]);
}
#else
constant constexpr uint TILE_APART_0 = 1, TILE_APART_1 = 8;
inline uint tile_soft_row(uint n) { return tile_row(4 * n); }
#define TILE_AT(c, i) c.e[i]
#define TILE_ROW_OF(i) ((i) / 4 % 2)
inline uint tile_key(uint i) { return i / 8 * 16 + tile_col(i); }
inline void tile_fetch_b(thread TileB& b, device const ACT* p, uint ld) {
    for (uint i = 0; i < 16; ++i) b.e[i] = p[(i / 8 * 16 + tile_row(i)) * ld + tile_col(i)];
}
inline void tile_fetch_bt(thread TileB& b, device const ACT* p, uint ld) {
    for (uint i = 0; i < 16; ++i) b.e[i] = p[tile_col(i) * ld + i / 8 * 16 + tile_row(i)];
}
inline void tile_load_bt(thread TileB& b, threadgroup const ACT* p, uint ld) {
    for (uint i = 0; i < 16; ++i) b.e[i] = p[tile_col(i) * ld + i / 8 * 16 + tile_row(i)];
}
inline void tile_as_a(thread TileA& a, thread const TileC& c, uint k) {
    for (uint i = 0; i < 8; ++i) a.e[i] = ACT(c.e[k * 8 + i]);
}
#endif
inline void tile_soft_start(thread TileSoft& soft) {
    for (uint n = 0; n < 2; ++n) {
        soft.top[n] = TILE_UNSEEN;
        soft.weight[n] = 0.0f;
    }
}
inline void tile_send(thread const TileC& c, threadgroup float* mine) {
    const uint lane = tile_lane();
    UNROLL for (uint i = 0; i < 16; ++i) mine[i * 32 + lane] = TILE_AT(c, i);
}
template <bool MASKED>
inline bool tile_soften(thread TileA* p, thread TileC& c, thread TileSoft& soft, thread TileFade& fade, float scale, uint key, threadgroup const float* mine,
                        threadgroup const float* theirs, threadgroup float* scratch) {
    const uint lane = tile_lane();
    float high[2] = {TILE_UNSEEN, TILE_UNSEEN};
    UNROLL for (uint i = 0; i < 16; ++i) {
        float score = TILE_AT(c, i) + theirs[i * 32 + lane];
        if (MASKED && key + tile_key(i) >= soft.seen[TILE_ROW_OF(i)]) score = TILE_UNSEEN;
        TILE_AT(c, i) = score;
        high[TILE_ROW_OF(i)] = max(high[TILE_ROW_OF(i)], score);
    }
    bool grown = false;
    UNROLL for (uint n = 0; n < 2; ++n) {
        high[n] = max(high[n], simd_shuffle_xor(high[n], ushort(TILE_APART_0)));
        high[n] = max(high[n], simd_shuffle_xor(high[n], ushort(TILE_APART_1))) * scale;
        fade.f[n] = 1.0f;
        if (high[n] > soft.top[n] + TILE_SLACK) {
            fade.f[n] = fast::exp2(soft.top[n] - high[n]);
            soft.top[n] = high[n];
            soft.weight[n] *= fade.f[n];
            grown = true;
        }
    }
    UNROLL for (uint i = 0; i < 16; ++i) {
        const float weight = fast::exp2(fma(TILE_AT(c, i), scale, -soft.top[TILE_ROW_OF(i)]));
        TILE_AT(c, i) = weight;
        soft.weight[TILE_ROW_OF(i)] += weight;
    }
    UNROLL for (uint k = 0; k < 2; ++k) tile_as_a(p[k], c, k);
    return simd_any(grown);
}
inline void tile_fade(thread TileC& c, thread const TileFade& fade) {
    UNROLL for (uint i = 0; i < 16; ++i) TILE_AT(c, i) *= fade.f[TILE_ROW_OF(i)];
}
inline void tile_soft_weights(thread const TileSoft& soft, threadgroup float* to) {
    UNROLL for (uint n = 0; n < 2; ++n) {
        float weight = soft.weight[n];
        weight += simd_shuffle_xor(weight, ushort(TILE_APART_0));
        weight += simd_shuffle_xor(weight, ushort(TILE_APART_1));
        if ((tile_lane() & (TILE_APART_0 | TILE_APART_1)) == 0) to[tile_soft_row(n)] = weight;
    }
}
#else
// A lane has half a row of scores, read from memory: Apple does not document how matrices lie in registers.
constant constexpr uint TILE_SOFT_ROWS = 1;
struct TileSoft { float top[1]; float weight[1]; uint seen[1]; };
/// Diagonal: a product with it multiplies each row by its own factor.
struct TileFade { simdgroup_float8x8 m[2]; };
inline uint tile_soft_row(uint) { return tile_lane() / 2; }
inline void tile_load_bt(thread TileB& b, threadgroup const ACT* p, uint ld) {
    for (uint j = 0; j < 4; ++j)
        for (uint k = 0; k < 2; ++k) simdgroup_load(b.m[j][k], p + k * 8 * ld + j * 8, ld);
}
inline void tile_fetch_b(thread TileB& b, device const ACT* p, uint ld) {
    for (uint j = 0; j < 4; ++j)
        for (uint k = 0; k < 2; ++k) simdgroup_load(b.m[j][k], p + j * 8 * ld + k * 8, ld, ulong2(0, 0), true);
}
inline void tile_fetch_bt(thread TileB& b, device const ACT* p, uint ld) {
    for (uint j = 0; j < 4; ++j)
        for (uint k = 0; k < 2; ++k) simdgroup_load(b.m[j][k], p + k * 8 * ld + j * 8, ld);
}
inline void tile_soft_start(thread TileSoft& soft) {
    soft.top[0] = TILE_UNSEEN;
    soft.weight[0] = 0.0f;
}
inline void tile_send(thread const TileC& c, threadgroup float* mine) {
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 4; ++j) simdgroup_store(c.m[i][j], mine + i * 8 * 32 + j * 8, 32);
}
template <bool MASKED>
inline bool tile_soften(thread TileA* p, thread TileC&, thread TileSoft& soft, thread TileFade& fade, float scale, uint key, threadgroup const float* mine,
                        threadgroup const float* theirs, threadgroup float* scratch) {
    const uint lane = tile_lane(), row = lane / 2, first = lane % 2 * 16;
    float score[16], high = TILE_UNSEEN;
    UNROLL for (uint i = 0; i < 16; ++i) {
        // The same sum in both simdgroups: it does not depend on which of the two is mine.
        score[i] = mine[row * 32 + first + i] + theirs[row * 32 + first + i];
        if (MASKED && key + first + i >= soft.seen[0]) score[i] = TILE_UNSEEN;
        high = max(high, score[i]);
    }
    high = max(high, simd_shuffle_xor(high, ushort(1))) * scale;
    const bool grows = high > soft.top[0] + TILE_SLACK, grown = simd_any(grows);
    if (grown) {
        const float f = grows ? fast::exp2(soft.top[0] - high) : 1.0f;
        soft.weight[0] *= f;
        if (grows) soft.top[0] = high;
        // Lane pairs have the rows of the matrices, and this half of the pair four of their columns.
        UNROLL for (uint i = 0; i < 4; ++i) scratch[row * 8 + lane % 2 * 4 + i] = row % 8 == lane % 2 * 4 + i ? f : 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 2; ++i) simdgroup_load(fade.m[i], (threadgroup const float*)scratch + i * 64, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    threadgroup ACT* weights = (threadgroup ACT*)scratch;
    UNROLL for (uint i = 0; i < 16; ++i) {
        const float weight = fast::exp2(fma(score[i], scale, -soft.top[0]));
        soft.weight[0] += weight;
        weights[row * 32 + first + i] = ACT(weight);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (uint k = 0; k < 2; ++k) tile_load_a(p[k], weights + k * 16, 32);
    return grown;
}
inline void tile_fade(thread TileC& c, thread const TileFade& fade) {
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 4; ++j)
            simdgroup_multiply_accumulate(c.m[i][j], fade.m[i], c.m[i][j], make_filled_simdgroup_matrix<float, 8, 8>(0.0f));
}
inline void tile_soft_weights(thread const TileSoft& soft, threadgroup float* to) {
    const float weight = soft.weight[0] + simd_shuffle_xor(soft.weight[0], ushort(1));
    if (tile_lane() % 2 == 0) to[tile_lane() / 2] = weight;
}
#endif
