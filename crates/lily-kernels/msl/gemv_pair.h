// Two products of the same rows by one simdgroup: gate and up of up to two outputs.
#pragma once
#include "gemv.h"

/// sums[(2 s + m) * GEMV_ROWS + r]: row r times row first + s of matrix m. Matrices of one format share each load of x; with two
/// formats `x` is run through for the first and `again`, the same rows once more, for the second.
template <class X>
inline void gemv_pair(thread float* sums, thread const QuantMatrix& a, thread const QuantMatrix& b, uint first, uint outputs, uint last,
                      uint rows, thread X& x, thread X& again, uint lane) {
    if (a.bits == b.bits && a.group == b.group) {
        QuantRow w[4];
        UNROLL
        for (uint s = 0; s < 2; ++s) {
            quant_row(w[2 * s], a, min(first + s, last));
            quant_row(w[2 * s + 1], b, min(first + s, last));
        }
        gemv<4>(sums, w, 2 * outputs, rows, a.cols, x, lane);
    } else {
        QuantRow w[2];
        float one[2 * GEMV_ROWS], other[2 * GEMV_ROWS];
        UNROLL
        for (uint s = 0; s < 2; ++s) quant_row(w[s], a, min(first + s, last));
        gemv<2>(one, w, outputs, rows, a.cols, x, lane);
        UNROLL
        for (uint s = 0; s < 2; ++s) quant_row(w[s], b, min(first + s, last));
        gemv<2>(other, w, outputs, rows, b.cols, again, lane);
        UNROLL
        for (uint s = 0; s < 2; ++s) {
            UNROLL
            for (uint r = 0; r < GEMV_ROWS; ++r) {
                sums[2 * s * GEMV_ROWS + r] = one[s * GEMV_ROWS + r];
                sums[(2 * s + 1) * GEMV_ROWS + r] = other[s * GEMV_ROWS + r];
            }
        }
    }
}
