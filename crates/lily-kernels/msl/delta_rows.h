// Rows of a DeltaNet state [value_dim, key_dim] in registers: eight rows a simdgroup, four lanes a row. Lane l of a row holds its
// fours l, l + 4, l + 8, ...: neighbours read neighbours, and a sum over the row is two exchanges. Behind a row's end stand zeros.
#pragma once
#include "fours.h"
/// Sixteens of the widest row: key heads of up to 256.
constant constexpr uint MOST_STEPS = 16;
inline float row_sum(float x) {
    x += simd_shuffle_xor(x, 1);
    return x + simd_shuffle_xor(x, 2);
}
inline float sum4(float4 x) { return (x.x + x.y) + (x.z + x.w); }
/// `steps` and `whole` are function constants: key heads of so many sixteens, the last one full.
inline void load_row(thread float4* s, device const float* row, uint key_dim, uint part, uint steps, bool whole) {
    UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
        if (i < steps) s[i] = floats4(row, 4 * (part + 4 * i), key_dim, whole);
}
inline void store_row(thread const float4* s, device float* row, uint key_dim, uint part, uint steps, bool whole) {
    UNROLL for (uint i = 0; i < MOST_STEPS; ++i)
        if (i < steps) put_floats4(row, 4 * (part + 4 * i), key_dim, whole, s[i]);
}
