// Products whose result is an operand of the next one, behind the tile interface (tile.h): C through threadgroup memory, C as A, and
// B from rows of its inner dimension. `area` (512 of TILE) and `scratch` (TILE_SCRATCH floats) belong to this simdgroup alone; both
// start at multiples of 16 bytes.
//
//   tile_put(c, p, ld); tile_take(c, p, ld);          C[i,j] to and from p[i * ld + j] in threadgroup memory
//   tile_load_b_columns(b, p, ld);                    B[n,k] = p[k * ld + n], for n < 32
//   tile_pass_on(left, right, c, scale, area, scratch);
//                                                     columns 0-15 and 16-31 of C, rounded to TILE, as two A; then C *= scale. The
//                                                     two A hold until the next call with this area
// What a lane puts or takes others read or wrote: a simdgroup_barrier belongs between. tile_pass_on brings its own.
#pragma once
#include "tile.h"

#if defined(TILE_IS_F32)
inline void tile_put(thread const TileC& c, threadgroup float* p, uint ld) {
    for (uint i = 0; i < 16; ++i) p[i * ld + tile_lane()] = c.e[i];
}
inline void tile_take(thread TileC& c, threadgroup const float* p, uint ld) {
    for (uint i = 0; i < 16; ++i) c.e[i] = p[i * ld + tile_lane()];
}
inline void tile_load_b_columns(thread TileB& b, threadgroup const float* p, uint ld) {
    b.p = p;
    b.ld = 1;
    b.step = ld;
}
inline void tile_pass_on(thread TileA& left, thread TileA& right, thread TileC& c, float scale, threadgroup float* area, threadgroup float*) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile_put(c, area, 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile_load_a(left, area, 32);
    tile_load_a(right, area + 16, 32);
    for (uint i = 0; i < 16; ++i) c.e[i] *= scale;
}
#elif defined(__CUDACC__)
inline void tile_put(const TileC& c, float* p, uint ld) {
    for (uint j = 0; j < 4; ++j) for (uint i = 0; i < 4; ++i) p[tile_row(i) * ld + tile_col(j, i)] = c.e[j][i];
}
inline void tile_take(TileC& c, const float* p, uint ld) {
    for (uint j = 0; j < 4; ++j) for (uint i = 0; i < 4; ++i) c.e[j][i] = p[tile_row(i) * ld + tile_col(j, i)];
}
/// The blocks of tile_load_blocks, each transposed.
inline void tile_load_turned_blocks(uint* r, const TILE* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(uint(__cvta_generic_to_shared(p))) : "memory");
}
inline void tile_load_b_columns(TileB& b, const TILE* p, uint ld) {
    const uint lane = tile_lane();
    p += (lane / 8 % 2 * 8 + lane % 8) * ld + lane / 16 * 8;
    tile_load_turned_blocks(b.r[0], p);
    tile_load_turned_blocks(b.r[2], p + 16);
}
/// Two values as a register of an operand.
inline uint tile_two(float low, float high) {
    return uint(as_type<ushort>(TILE(low))) | uint(as_type<ushort>(TILE(high))) << 16;
}
inline void tile_pass_on(TileA& left, TileA& right, TileC& c, float scale, TILE*, float*) {
    for (uint i = 0; i < 4; ++i) {
        left.r[i] = tile_two(c.e[i / 2][i % 2 * 2], c.e[i / 2][i % 2 * 2 + 1]);
        right.r[i] = tile_two(c.e[2 + i / 2][i % 2 * 2], c.e[2 + i / 2][i % 2 * 2 + 1]);
    }
    for (uint j = 0; j < 4; ++j) for (uint i = 0; i < 4; ++i) c.e[j][i] *= scale;
}
#elif defined(TILE_MPP)
inline void tile_put(thread const TileC& c, threadgroup float* p, uint ld) {
    for (uint i = 0; i < 16; ++i) p[tile_row(i) * ld + i / 8 * 16 + tile_col(i)] = c.e[i];
}
inline void tile_take(thread TileC& c, threadgroup const float* p, uint ld) {
    for (uint i = 0; i < 16; ++i) c.e[i] = p[tile_row(i) * ld + i / 8 * 16 + tile_col(i)];
}
inline void tile_load_b_columns(thread TileB& b, threadgroup const TILE* p, uint ld) {
    for (uint i = 0; i < 16; ++i) b.e[i] = p[tile_col(i) * ld + i / 8 * 16 + tile_row(i)];
}
inline void tile_pass_on(thread TileA& left, thread TileA& right, thread TileC& c, float scale, threadgroup TILE*, threadgroup float*) {
    for (uint i = 0; i < 8; ++i) {
        left.e[i] = TILE(c.e[i]);
        right.e[i] = TILE(c.e[i + 8]);
    }
    for (uint i = 0; i < 16; ++i) c.e[i] *= scale;
}
#else
inline void tile_put(thread const TileC& c, threadgroup float* p, uint ld) {
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 4; ++j) simdgroup_store(c.m[i][j], p + i * 8 * ld + j * 8, ld);
}
inline void tile_take(thread TileC& c, threadgroup const float* p, uint ld) {
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 4; ++j) simdgroup_load(c.m[i][j], p + i * 8 * ld + j * 8, ld);
}
inline void tile_load_b_columns(thread TileB& b, threadgroup const TILE* p, uint ld) {
    for (uint j = 0; j < 4; ++j)
        for (uint k = 0; k < 2; ++k) simdgroup_load(b.m[j][k], p + k * 8 * ld + j * 8, ld);
}
inline void tile_pass_on(thread TileA& left, thread TileA& right, thread TileC& c, float scale, threadgroup TILE* area, threadgroup float* scratch) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile_put(c, scratch, 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 4 * tile_lane(); i < 512; i += 128) {
        const float4 v = *(threadgroup const float4*)(scratch + i);
        *(threadgroup vec<TILE, 4>*)(area + i) = VEC(TILE, 4, v);
        *(threadgroup float4*)(scratch + i) = v * scale;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    tile_load_a(left, area, 32);
    tile_load_a(right, area + 16, 32);
    tile_take(c, scratch, 32);
}
#endif
