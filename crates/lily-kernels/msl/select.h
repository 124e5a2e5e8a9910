// Scores of tokens as the kernels of selection compare and weigh them.
#pragma once
using namespace metal;
/// The key of -inf: a token that is never chosen. All keys of finite scores are above it.
constant constexpr uint BANNED = 0x007fffffu;
/// -inf.
inline float no_score() { return as_type<float>(0xff800000u); }
constant constexpr float LARGEST_FLOAT = 3.402823466e38f;
/// A larger score has the larger key; the two zeros have one. Keys compare exactly on devices that flush denormals too.
inline uint score_key(float score) {
    const uint bits = as_type<uint>(score);
    return bits == 0x80000000u ? bits : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
inline float key_score(uint key) { return as_type<float>(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }
/// (score - largest) / temperature, which is at most 0. Halves, so that the difference of the largest floats is one, too.
inline float score_exponent(float score, float largest, float temperature) {
    if (score == largest) return 0.0f;
    return fmin(2.0f * ((0.5f * score - 0.5f * largest) / temperature), 0.0f);
}
/// The weight of a token in the draw: 1 for the most probable, 0 for a banned one.
inline float score_weight(float score, float largest, float temperature) {
    return precise::exp(score_exponent(score, largest, temperature));
}
