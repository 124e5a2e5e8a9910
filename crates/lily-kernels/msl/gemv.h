// Products of one to four rows with quantized rows of matrices, a simdgroup for some outputs (GEMV).
//
// A simdgroup takes STREAMS rows of matrices ("streams": outputs of one matrix, of gate and up, of several experts; all of one
// format). Its lanes split the inputs: lane l takes inputs 16 l to 16 l + 15 of every 512. A run of 16 lies in one group, so it
// costs 16 products, and the scale and the bias one fma each: scale * (q . x) + bias * sum(x). x is loaded once for all streams,
// a weight once for all rows. Order of a sum: within a run from first to last, a lane's runs in order, then simd_sum: it depends
// on the number of inputs alone, and each row and stream has sums of its own.
//
//   QuantRow w[4];                                    // where a stream has no output, any valid row, not used afterwards
//   for (uint s = 0; s < 4; ++s) quant_row(w[s], matrix, min(first + s, outputs - 1));
//   ActRows x = {input, cols};
//   float sums[4 * GEMV_ROWS];
//   gemv<4>(sums, w, 4, rows, cols, x, lane);         // in every lane: sums[s * GEMV_ROWS + r]
//
// Where x comes from is an object with `void load(thread float* v, uint r, uint k)`: 16 values of row r from input k, a multiple
// of 16, by a lane. Not every lane calls it equally often: no barriers and no simd operations in it.
#pragma once
using namespace metal;
#include "activation.h"
#include "plain.h"
#include "quant.h"

constant constexpr uint GEMV_ROWS = 4;

template <uint STREAMS, class X>
inline void gemv(thread float* sums, thread const QuantRow* w, uint streams, uint rows, uint cols, thread X& x, uint lane) {
    UNROLL
    for (uint i = 0; i < STREAMS * GEMV_ROWS; ++i) sums[i] = 0.0f;
    const uint bits = w[0].bits, group = w[0].group;
    for (uint k = lane * 16; k < cols; k += 512) {
        float v[GEMV_ROWS * 16], total[GEMV_ROWS];
        UNROLL
        for (uint r = 0; r < GEMV_ROWS; ++r) {
            if (r >= rows) continue;
            thread float* row = v + r * 16;
            x.load(row, r, k);
            total[r] = 0.0f;
            UNROLL
            for (uint i = 0; i < 16; ++i) total[r] += row[i];
            UNROLL
            for (uint i = 0; i < 16; ++i) row[i] *= quant_factor(bits, i);
        }
        UNROLL
        for (uint s = 0; s < STREAMS; ++s) {
            if (s >= streams) continue;
            uint words[6];
            float q[16];
            quant_load16(words, w[s], k);
            quant_unpack16(q, words, bits);
            const float scale = float(w[s].scales[k / group]), bias = float(w[s].biases[k / group]);
            UNROLL
            for (uint r = 0; r < GEMV_ROWS; ++r) {
                if (r >= rows) continue;
                float dot = 0.0f;
                UNROLL
                for (uint i = 0; i < 16; ++i) dot = fma(q[i], v[r * 16 + i], dot);
                thread float& sum = sums[s * GEMV_ROWS + r];
                sum = fma(scale, dot, fma(bias, total[r], sum));
            }
        }
    }
    UNROLL
    for (uint s = 0; s < STREAMS; ++s) {
        UNROLL
        for (uint r = 0; r < GEMV_ROWS; ++r)
            if (s < streams && r < rows) sums[s * GEMV_ROWS + r] = simd_sum(sums[s * GEMV_ROWS + r]);
    }
}

/// Rows of activations, `cols` apart; `cols` is a multiple of 32, like the inputs of every quantized matrix.
struct ActRows {
    device const FINE* x;
    uint cols;
    void load(thread float* v, uint r, uint k) {
        device const FINE* p = x + ulong(r) * cols + k;
        UNROLL
        for (uint i = 0; i < 16; i += 4) fine_load4(v + i, p + i);
    }
};

/// Rows of f32 times the weight of an RMSNorm. The rest of the norm is one factor a row, which norm_scale gives once gemv has run
/// through all inputs: no pass and no barrier come before the product. The squares are summed as the product is.
///
///   NormRows x = {input, weight, WEIGHT_IS_F32, cols, {}};
struct NormRows {
    device const float* x;
    device const bfloat* weight;
    bool weight_is_f32;
    uint cols;
    float squares[GEMV_ROWS];
    void load(thread float* v, uint r, uint k) {
        device const float* p = x + ulong(r) * cols + k;
        UNROLL
        for (uint i = 0; i < 16; i += 4) {
            const float4 a = *(device const float4*)(p + i);
            float w[4];
            plain_load4(w, weight, weight_is_f32, k + i);
            squares[r] = fma(a.x, a.x, squares[r]);
            squares[r] = fma(a.y, a.y, squares[r]);
            squares[r] = fma(a.z, a.z, squares[r]);
            squares[r] = fma(a.w, a.w, squares[r]);
            v[i] = a.x * w[0];
            v[i + 1] = a.y * w[1];
            v[i + 2] = a.z * w[2];
            v[i + 3] = a.w * w[3];
        }
    }
};
/// What the sums of row r are still to be multiplied with. By the whole simdgroup.
inline float norm_scale(thread const NormRows& rows, uint r, float eps) {
    return precise::rsqrt(simd_sum(rows.squares[r]) / float(rows.cols) + eps);
}
