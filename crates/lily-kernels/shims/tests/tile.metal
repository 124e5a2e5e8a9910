// The tile interface (tile.h) on dequantized weights. Each body of it must give the same product.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
using namespace metal;
#define TILE bfloat
#include "tile.h"

struct GemmQ4Args { uint m; uint n; uint k; };
constant constexpr uint QG = 64;   // quantisation group, also the depth of one step
constant constexpr uint QM = 32;
constant constexpr uint QN = 32;

// ---- C[m,n] = A[m,k] * dequant(W)[n,k]^T, 64 threads: two simdgroups of 16x32; m, n % 32 == 0, k % 64 == 0
kernel void gemm_q4_bf16(device const bfloat* a [[buffer(0)]],
                         device const uint* w [[buffer(1)]],
                         device const bfloat* scales [[buffer(2)]],
                         device const bfloat* biases [[buffer(3)]],
                         device float* c [[buffer(4)]],
                         constant GemmQ4Args& args [[buffer(5)]],
                         uint3 tg [[threadgroup_position_in_grid]],
                         uint tid [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(bfloat, tile_x, QM * QG);
    TG_ARRAY(bfloat, tile_w, QN * QG);
    const uint row0 = tg.y * QM, col0 = tg.x * QN;
    TileC acc;
    tile_zero(acc);
    for (uint k0 = 0; k0 < args.k; k0 += QG) {
        for (uint i = tid; i < QM * QG; i += 64) tile_x[i] = a[(row0 + i / QG) * args.k + k0 + i % QG];
        for (uint i = tid; i < QN * QG / 8; i += 64) {
            const uint row = col0 + i / (QG / 8), word = i % (QG / 8);
            const uint packed = w[row * (args.k / 8) + k0 / 8 + word];
            const float s = float(scales[row * (args.k / QG) + k0 / QG]);
            const float b = float(biases[row * (args.k / QG) + k0 / QG]);
            for (uint j = 0; j < 8; ++j) tile_w[i * 8 + j] = bfloat(float((packed >> (4 * j)) & 15u) * s + b);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < QG; kk += 16) {
            TileA fa;
            TileB fb;
            tile_load_a(fa, tile_x + simd * 16 * QG + kk, QG);
            tile_load_b(fb, tile_w + kk, QG);
            tile_mma(acc, fa, fb);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    tile_store(acc, c + (row0 + simd * 16) * args.n + col0, args.n);
}

// A fault on purpose: the tile is read before all of it is written. For TSan to find.
kernel void fault_tile_barrier(device const bfloat* a [[buffer(0)]], device float* c [[buffer(1)]], uint tid [[thread_index_in_threadgroup]],
                               uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(bfloat, tile, QM * 16);
    for (uint i = tid; i < QM * 16; i += 64) tile[i] = a[i];
    TileA fa;
    TileB fb;
    TileC acc;
    tile_zero(acc);
    tile_load_a(fa, tile + simd * 256, 16);
    tile_load_b(fb, tile, 16);
    tile_mma(acc, fa, fb);
    tile_store(acc, c + simd * 512, 32);
}
