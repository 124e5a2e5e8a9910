// Whole kernels in the style of the engine: a quantized GEMV, a norm, a product by simdgroup matrices. Test material only.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
using namespace metal;

FUNCTION_CONSTANT(uint, ROWS_PER_SIMD, 0);
FUNCTION_CONSTANT(bool, HAS_RESIDUAL, 1);

struct GemvArgs { uint n; uint k; };
struct NormArgs { uint width; float eps; };
struct GemmArgs { uint m; uint n; uint k; };

// ---- affine 4-bit, group 64: w = q * scale + bias ------------------------------------------
constant constexpr uint GROUP = 64;
constant constexpr uint MAX_ROWS = 8;


/// Dot product of 8 packed nibbles with 8 activations.
inline float dot_q4x8(uint packed, float4 x_lo, float4 x_hi) {
    const float4 q_lo = float4(float(packed & 15u), float((packed >> 4) & 15u),
                               float((packed >> 8) & 15u), float((packed >> 12) & 15u));
    const float4 q_hi = float4(float((packed >> 16) & 15u), float((packed >> 20) & 15u),
                               float((packed >> 24) & 15u), float(packed >> 28));
    return dot(q_lo, x_lo) + dot(q_hi, x_hi);
}

/// One simdgroup computes ROWS_PER_SIMD rows; each lane walks 8 columns out of every 256.
template <typename T>
inline void gemv_q4_rows(device const uint* w, device const T* scales, device const T* biases,
                         device const T* x, device T* y, constant GemvArgs& args,
                         uint first_row, uint lane) {
    float acc[MAX_ROWS] = {0, 0, 0, 0, 0, 0, 0, 0};
    const uint words_per_row = args.k / 8;
    const uint groups_per_row = args.k / GROUP;
    for (uint word = lane; word < words_per_row; word += 32) {
        device const T* xp = x + word * 8;
        const float4 x_lo = float4(float(xp[0]), float(xp[1]), float(xp[2]), float(xp[3]));
        const float4 x_hi = float4(float(xp[4]), float(xp[5]), float(xp[6]), float(xp[7]));
        const float x_sum = dot(x_lo, float4(1.0f)) + dot(x_hi, float4(1.0f));
        const uint group = word * 8 / GROUP;
        for (uint r = 0; r < ROWS_PER_SIMD; ++r) {
            const uint row = first_row + r;
            if (row >= args.n) break;
            const uint packed = w[row * words_per_row + word];
            const float s = float(scales[row * groups_per_row + group]);
            const float b = float(biases[row * groups_per_row + group]);
            acc[r] += s * dot_q4x8(packed, x_lo, x_hi) + b * x_sum;
        }
    }
    for (uint r = 0; r < ROWS_PER_SIMD; ++r) {
        const float total = simd_sum(acc[r]);
        if (lane == 0 && first_row + r < args.n) y[first_row + r] = T(total);
    }
}

kernel void gemv_q4_f16(device const uint* w [[buffer(0)]],
                        device const half* scales [[buffer(1)]],
                        device const half* biases [[buffer(2)]],
                        device const half* x [[buffer(3)]],
                        device half* y [[buffer(4)]],
                        constant GemvArgs& args [[buffer(5)]],
                        uint3 tg [[threadgroup_position_in_grid]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simds [[simdgroups_per_threadgroup]]) {
    const uint first_row = (tg.x * simds + simd) * ROWS_PER_SIMD;
    gemv_q4_rows<half>(w, scales, biases, x, y, args, first_row, lane);
}

kernel void gemv_q4_bf16(device const uint* w [[buffer(0)]],
                         device const bfloat* scales [[buffer(1)]],
                         device const bfloat* biases [[buffer(2)]],
                         device const bfloat* x [[buffer(3)]],
                         device bfloat* y [[buffer(4)]],
                         constant GemvArgs& args [[buffer(5)]],
                         uint3 tg [[threadgroup_position_in_grid]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simds [[simdgroups_per_threadgroup]]) {
    const uint first_row = (tg.x * simds + simd) * ROWS_PER_SIMD;
    gemv_q4_rows<bfloat>(w, scales, biases, x, y, args, first_row, lane);
}

// ---- tile loader, shared
constant constexpr uint BM = 32;
constant constexpr uint BN = 32;
constant constexpr uint BK = 32;

inline void load_tile(device const half* src, uint row0, uint rows, uint k0, uint k,
                      threadgroup half* tile, uint tid) {
    for (uint i = tid; i < BM * BK; i += 128) {
        const uint r = i / BK, c = i % BK;
        tile[i] = (row0 + r < rows && k0 + c < k) ? src[(row0 + r) * k + k0 + c] : half(0);
    }
}

// ---- RMSNorm, one threadgroup a row ---------------------------------------------------------
kernel void rms_norm_f16(device const half* x [[buffer(0)]],
                         device const half* weight [[buffer(1)]],
                         device const half* residual [[buffer(2)]],
                         device half* y [[buffer(3)]],
                         constant NormArgs& args [[buffer(4)]],
                         uint row [[threadgroup_position_in_grid]],
                         uint tid [[thread_position_in_threadgroup]],
                         uint tg_size [[threads_per_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
    TG_ARRAY(float, partial, 32);
    device const half* xr = x + row * args.width;
    float sum = 0.0f;
    for (uint i = tid; i < args.width; i += tg_size) {
        const float v = float(xr[i]);
        sum = fma(v, v, sum);
    }
    // butterfly in place of simd_sum, to exercise simd_shuffle_xor
    for (ushort offset = 16; offset > 0; offset >>= 1) sum += simd_shuffle_xor(sum, offset);
    if (lane == 0) partial[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint simds = (tg_size + 31) / 32;
    const float total = simd_sum(lane < simds ? partial[lane] : 0.0f);
    const float scale = rsqrt(total / float(args.width) + args.eps);
    for (uint i = tid; i < args.width; i += tg_size) {
        float v = float(xr[i]) * scale * float(weight[i]);
        if (HAS_RESIDUAL) v += float(residual[row * args.width + i]);
        y[row * args.width + i] = half(v);
    }
}

// ---- C[m,n] = A[m,k] * B[n,k]^T, 32x32 tile, 4 simdgroups of 16x16 --------------------------
kernel void gemm_nt_f16(device const half* a [[buffer(0)]],
                        device const half* b [[buffer(1)]],
                        device float* c [[buffer(2)]],
                        constant GemmArgs& args [[buffer(3)]],
                        uint3 tg [[threadgroup_position_in_grid]],
                        uint tid [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(half, tile_a, BM * BK);
    TG_ARRAY(half, tile_b, BN * BK);
    const uint row0 = tg.y * BM, col0 = tg.x * BN;
    const uint sm = (simd / 2) * 16, sn = (simd % 2) * 16;
    simdgroup_float8x8 acc[2][2];
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 2; ++j) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    for (uint k0 = 0; k0 < args.k; k0 += BK) {
        load_tile(a, row0, args.m, k0, args.k, tile_a, tid);
        load_tile(b, col0, args.n, k0, args.k, tile_b, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < BK; kk += 8) {
            simdgroup_half8x8 fa[2], fb[2];
            for (uint i = 0; i < 2; ++i) {
                simdgroup_load(fa[i], tile_a + (sm + i * 8) * BK + kk, BK);
                simdgroup_load(fb[i], tile_b + (sn + i * 8) * BK + kk, BK, ulong2(0, 0), true);
            }
            for (uint i = 0; i < 2; ++i)
                for (uint j = 0; j < 2; ++j)
                    simdgroup_multiply_accumulate(acc[i][j], fa[i], fb[j], acc[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 2; ++j)
            simdgroup_store(acc[i][j], c + (row0 + sm + i * 8) * args.n + col0 + sn + j * 8, args.n);
}
