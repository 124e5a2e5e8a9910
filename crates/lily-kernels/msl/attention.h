// What the kernels of attention share: heads, their norm, the cache in pages.
#pragma once
#include "activation.h"
#include "plain.h"
#include "slots.h"
#include "rope.h"

/// The widest head (MOST_HEAD_DIM of attention/mod.rs).
constant constexpr uint MOST_WIDTH = 256;
/// The most pairs that RoPE turns.
constant constexpr uint MOST_PAIRS = MOST_WIDTH / 2;

inline float minus_infinity() { return as_type<float>(0xff800000u); }

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

/// Where the key or value of a token begins in the pool of pages [kv_heads, 64, width].
inline ulong cache_at(device const uint* slots, uint slot, uint position, uint head, uint heads, uint width) {
    return ((ulong(slot_page(slots, slot, position)) * heads + head) * 64 + position % 64) * width;
}

/// What RMSNorm multiplies a head by; by one simdgroup.
inline float head_scale(device const ACT* x, uint width, float eps, uint lane) {
    float sum = 0.0f;
    for (uint i = lane; i < width; i += 32) sum = fma(float(x[i]), float(x[i]), sum);
    return precise::rsqrt(simd_sum(sum) / float(width) + eps);
}

/// Element i of a head after norm and RoPE.
inline float prepared(device const ACT* x, device const bfloat* w, bool w_is_f32, float scale, threadgroup const float* turns, uint pairs, uint i) {
    const float own = float(x[i]) * scale * plain_value(w, w_is_f32, i);
    if (i >= 2 * pairs) return own;
    const bool second = i >= pairs;
    const uint other = second ? i - pairs : i + pairs, j = second ? other : i;
    return rope_turned(own, float(x[other]) * scale * plain_value(w, w_is_f32, other), second, turns[2 * j], turns[2 * j + 1]);
}
