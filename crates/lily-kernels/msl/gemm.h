// Tiles of products of activations with quantized (or plain) matrices (GEMM): a threadgroup makes up to 16 H rows by 32 columns
// a simdgroup, where a simdgroup makes all rows of its 32 columns. H is 1, 2 or 4; simdgroups are H to 4, a power of two.
//
// Inputs come in steps of 32. Of each step a thread fetches 32 weights of its own row of the matrices into registers while the
// step before is multiplied, then dequantizes them into threadgroup memory as TILE, once for all rows; only its own simdgroup reads
// them. Rows of x are shared by the simdgroups, in two buffers used in turn: one threadgroup barrier a step. (With f32 two do not
// fit: one buffer, two barriers.) A sum runs over the inputs in steps of 16 from the first to the last, whatever H and the number
// of rows are, so a row's bits depend on neither.
//
//   TG_ARRAY(uint4, memory, GEMM_MEMORY);
//   GemmQuant w = {};
//   quant_row(w.row, matrix, min(col + thread_index, outputs - 1));       // this thread's row of the matrix, or any
//   GemmRows a = {x, cols, row};                                          // row i of the tile is row + i of x
//   TileC sums[H];
//   gemm<H>(sums, memory, a, w, rows, cols, col + simd * 32 < outputs, thread_index, threads);
//   gemm_store<H>(sums, memory, row, row + rows, col, outputs, out, simd, lane);
//
// Everything that differs between products is in these objects:
//   rows of x    `device const FINE* row(uint i)`, i < rows: row i of the tile, perhaps through a permutation; asked once a thread.
//                A row starts at a multiple of 32 elements from a buffer's start
//   weights      GemmQuant: a quantized row of any matrix and format; GemmPlain: a row of FINE
//   results      `void store(uint r, uint o, float v)`: stores, adds, scatters, applies factors (output.h has one). gemm_store_pairs calls
//                `store(r, o, first, second)`: with tile row n of the matrices chosen by gemm_pair_output and gemm_pair_second, 16
//                outputs of two matrices stand side by side in a simdgroup's 32 columns
// All threads of the threadgroup call gemm; `rows` (1 to 16 H) and `cols` are the same for all of them.
#pragma once
#include "activation.h"
#include "quant.h"
// bfloat would keep 8 bits of a weight, half keeps 11, at the same rate: tiles multiply in FINE (tile.h), as rows of x are stored.
#include "tile.h"

constant constexpr uint GEMM_STEP = 32;
// A row of a tile: some elements more than a step, so that the rows of a fragment lie in different banks.
#ifdef ACT_IS_F32
constant constexpr uint GEMM_LD = GEMM_STEP + 4, GEMM_BUFFERS = 1;
#else
constant constexpr uint GEMM_LD = GEMM_STEP + 8, GEMM_BUFFERS = 2;
#endif
/// uint4s of threadgroup memory that 128 rows of weights and 64 of x take: 20 KiB, 27 KiB with f32.
constant constexpr uint GEMM_MEMORY = (128 + GEMM_BUFFERS * 64) * GEMM_LD * sizeof(TILE) / 16;

/// A quantized row of weights: its words of the next step, and where it is.
struct GemmQuant {
    QuantRow row;
    uint words[8];
    float scale, bias;
    void fetch(uint k) {
        quant_load32(words, row, k);
        scale = float(row.scales[k / row.group]);
        bias = float(row.biases[k / row.group]);
    }
    void put(threadgroup TILE* to) {
        UNROLL
        for (uint upper = 0; upper < 2; ++upper) {
            float q[16];
            quant_unpack32(q, words, row.bits, upper);
            UNROLL
            for (uint i = 0; i < 16; ++i) q[i] = fma(q[i], scale * quant_factor(row.bits, i), bias);
            UNROLL
            for (uint i = 0; i < 16; i += 4) fine_stage4(to + upper * 16 + i, q[i], q[i + 1], q[i + 2], q[i + 3]);
        }
    }
};
/// Four elements on their way from a buffer to threadgroup memory.
struct GemmPiece {
    ulong bits[sizeof(FINE) / 2];
    void load(device const FINE* p) {
        UNROLL
        for (uint i = 0; i < sizeof(FINE) / 2; ++i) bits[i] = ((device const ulong*)p)[i];
    }
    void store(threadgroup TILE* p) {
        UNROLL
        for (uint i = 0; i < sizeof(FINE) / 2; ++i) ((threadgroup ulong*)p)[i] = bits[i];
    }
};
/// A row of weights of FINE.
struct GemmPlain {
    device const FINE* row;
    GemmPiece pieces[8];
    void fetch(uint k) {
        UNROLL
        for (uint i = 0; i < 8; ++i) pieces[i].load(row + k + 4 * i);
    }
    void put(threadgroup TILE* to) {
        UNROLL
        for (uint i = 0; i < 8; ++i) pieces[i].store(to + 4 * i);
    }
};

/// Rows of x one after the other, from row `first`.
struct GemmRows {
    device const FINE* x;
    uint cols, first;
    device const FINE* row(uint i) { return x + ulong(first + i) * cols; }
};

/// With two matrices: which output of the tile's `simdgroups * 16` a thread's row of weights belongs to, and whether to the second.
inline uint gemm_pair_output(uint thread_index) { return thread_index / 32 * 16 + thread_index % 16; }
inline bool gemm_pair_second(uint thread_index) { return thread_index % 32 >= 16; }

/// A simdgroup with `busy` false only helps with x.
template <uint H, class A, class W>
inline void gemm(thread TileC* sums, threadgroup uint4* memory, thread A& a, thread W& w, uint rows, uint cols, bool busy,
                 uint thread_index, uint threads) {
    threadgroup TILE* weights = (threadgroup TILE*)memory;
    threadgroup TILE* x = weights + threads * GEMM_LD;
    threadgroup TILE* own = weights + thread_index / 32 * 32 * GEMM_LD;
    // x in pieces of four: eight a row, up to four a thread.
    device const FINE* from[4];
    threadgroup TILE* to[4];
    UNROLL
    for (uint i = 0; i < 4; ++i) {
        const uint piece = thread_index + i * threads, r = piece / 8, k = piece % 8 * 4;
        from[i] = r < rows ? a.row(r) + k : (device const FINE*)0;
        to[i] = r < 16 * H ? x + r * GEMM_LD + k : (threadgroup TILE*)0;
    }
    UNROLL
    for (uint h = 0; h < H; ++h) tile_zero(sums[h]);
    // Rows that are not there stay 0.
    GemmPiece next[4] = {};
    w.fetch(0);
    UNROLL
    for (uint i = 0; i < 4; ++i) if (from[i]) next[i].load(from[i]);
    uint buffer = 0;
    for (uint k = 0; k < cols; k += GEMM_STEP) {
        w.put(weights + thread_index * GEMM_LD);
        UNROLL
        for (uint i = 0; i < 4; ++i) if (to[i]) next[i].store(to[i] + buffer);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (k + GEMM_STEP < cols) {
            w.fetch(k + GEMM_STEP);
            UNROLL
            for (uint i = 0; i < 4; ++i) if (from[i]) next[i].load(from[i] + k + GEMM_STEP);
        }
        if (busy) {
            UNROLL
            for (uint kk = 0; kk < GEMM_STEP; kk += 16) {
                TileB tb;
                tile_load_b(tb, own + kk, GEMM_LD);
                UNROLL
                for (uint h = 0; h < H; ++h) {
                    if (h * 16 >= rows) continue;
                    TileA ta;
                    tile_load_a(ta, x + buffer + h * 16 * GEMM_LD + kk, GEMM_LD);
                    tile_mma(sums[h], ta, tb);
                }
            }
        }
        if (GEMM_BUFFERS == 2) {
            buffer = buffer ? 0 : 16 * H * GEMM_LD;
            simdgroup_barrier(mem_flags::mem_threadgroup);
        } else {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    }
}

/// Hands the sums of rows `row` to `rows` and columns `col` to `cols` to `out`; counted as `out` counts them.
template <uint H, class Out>
inline void gemm_store(thread TileC* sums, threadgroup uint4* memory, uint row, uint rows, uint col, uint cols, thread Out& out,
                       uint simd, uint lane) {
    threadgroup float* scratch = (threadgroup float*)((threadgroup TILE*)memory + simd * 32 * GEMM_LD);
    UNROLL
    for (uint h = 0; h < H; ++h)
        if (row + h * 16 < rows) tile_each(sums[h], scratch, lane, row + h * 16, rows, col + simd * 32, cols, out);
}
/// The same for two matrices, 16 outputs a simdgroup.
template <uint H, class Out>
inline void gemm_store_pairs(thread TileC* sums, threadgroup uint4* memory, uint row, uint rows, uint col, uint cols, thread Out& out,
                             uint simd, uint lane) {
    threadgroup float* scratch = (threadgroup float*)((threadgroup TILE*)memory + simd * 32 * GEMM_LD);
    UNROLL
    for (uint h = 0; h < H; ++h)
        if (row + h * 16 < rows) tile_pairs(sums[h], scratch, lane, row + h * 16, rows, col + simd * 16, cols, out);
}
