// Causal depthwise convolution and SiLU (delta/conv.rs): a thread a run of rows of one channel or of four neighbours.
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "plain.h"
#include "slots.h"
#include "gates.h"
#include "fours.h"
using namespace metal;

FUNCTION_CONSTANT(bool, WEIGHT_IS_F32, 0);
// Four channels a thread: rows of a multiple of four channels, and at most four taps.
FUNCTION_CONSTANT(bool, FOURS, 1);

struct ConvSiluParams { uint rows; uint channels; uint taps; };

// Rows of a thread (conv.rs has the same number). Rows that two runs read come from the cache.
constant constexpr uint RUN = 8;

kernel void conv_silu(device const FINE* raw [[buffer(0)]],
                      device const bfloat* w [[buffer(1)]],
                      device FINE* out [[buffer(2)]],
                      device const float* state [[buffer(3)]],
                      device const uint* slots [[buffer(4)]],
                      constant ConvSiluParams& p [[buffer(5)]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint3 at [[thread_position_in_grid]]) {
    const uint before = p.taps - 1, first = group.y * RUN, slot = group.z;
    device const float* kept = state + ulong(slot_state(slots, slot)) * before * p.channels;
    device const FINE* rows = raw + ulong(slot) * p.rows * p.channels;
    device FINE* result = out + ulong(slot) * p.rows * p.channels;
    if (FOURS) {
        const uint c = at.x * 4;
        if (c >= p.channels) return;
        // Tap j of four stands at j + 4 - taps, so that the newest row is always the last; taps that are not there weigh nothing.
        float4 tap[4], x[RUN + 3];
        UNROLL for (uint j = 0; j < 4; ++j) {
            const bool there = j + p.taps >= 4;
            const uint i = c * p.taps + j + p.taps - 4;
            tap[j] = float4(there ? plain_value(w, WEIGHT_IS_F32, i) : 0.0f, there ? plain_value(w, WEIGHT_IS_F32, i + p.taps) : 0.0f,
                            there ? plain_value(w, WEIGHT_IS_F32, i + 2 * p.taps) : 0.0f, there ? plain_value(w, WEIGHT_IS_F32, i + 3 * p.taps) : 0.0f);
        }
        UNROLL for (uint i = 0; i < RUN + 3; ++i) {
            // Row first + i - 3 of the sequence, the kept ones before row 0.
            const uint row = first + i + before - 3;
            const bool there = i + before >= 3 && row < before + p.rows;
            if (!there) x[i] = float4(0.0f);
            else if (row < before) x[i] = floats4(kept + row * p.channels, c, p.channels, true);
            else x[i] = float4(fine4(rows + ulong(row - before) * p.channels, c, p.channels, true));
        }
        UNROLL for (uint r = 0; r < RUN; ++r) {
            float4 sum = float4(0.0f);
            UNROLL for (uint j = 0; j < 4; ++j) sum = fma(tap[j], x[r + j], sum);
            if (first + r < p.rows)
                put4(result + ulong(first + r) * p.channels, c, p.channels, true, float4(silu(sum.x), silu(sum.y), silu(sum.z), silu(sum.w)));
        }
    } else {
        const uint c = at.x;
        if (c >= p.channels) return;
        for (uint t = first; t < min(first + RUN, p.rows); ++t) {
            float sum = 0.0f;
            for (uint j = 0; j < p.taps; ++j) {
                const uint row = t + j;
                const float x = row < before ? kept[row * p.channels + c] : float(rows[ulong(row - before) * p.channels + c]);
                sum = fma(plain_value(w, WEIGHT_IS_F32, c * p.taps + j), x, sum);
            }
            result[ulong(t) * p.channels + c] = fine_of(silu(sum));
        }
    }
}
