// Rotary position embedding: pairs (j, j + pairs) of the first 2 * pairs elements of a head, turned by position * frequency.
#pragma once

/// The product of two numbers, each the sum of two floats: 48 bits.
inline float2 wide_product(float2 a, float2 b) {
    // fma(., ., 0) is a product that no compiler joins with the sum below.
    const float high = fma(a.x, b.x, 0.0f);
    const float low = fma(a.x, b.y, fma(a.y, b.x, fma(a.x, b.x, -high)));
    const float sum = high + low;
    return float2(sum, low - (sum - high));
}

/// theta^(-2j / rotary_dim), rounded once: powers, by squaring, of the ratio between neighbouring pairs, which comes as the sum of two
/// floats. An f32 power would be off by some units in the last place, and the angle at position 2.6e5 by 0.03.
inline float rope_frequency(float ratio_high, float ratio_low, uint j) {
    float2 power = float2(ratio_high, ratio_low), out = float2(1.0f, 0.0f);
    for (; j != 0; j >>= 1) {
        if (j & 1) out = wide_product(out, power);
        power = wide_product(power, power);
    }
    return out.x;
}

/// Cosine and sine of pair j, for turns[2j] and turns[2j + 1]. The angle is rounded to float, as in the reference.
inline void rope_turn(threadgroup float* turns, uint position, float ratio_high, float ratio_low, uint j) {
    const float angle = float(position) * rope_frequency(ratio_high, ratio_low, j);
    turns[2 * j] = precise::cos(angle);
    turns[2 * j + 1] = precise::sin(angle);
}

/// An element of the turned part of a head, from itself and the other of its pair.
inline float rope_turned(float own, float other, bool second, float cosine, float sine) {
    const float crossed = other * sine;
    return fma(own, cosine, second ? crossed : -crossed);
}
