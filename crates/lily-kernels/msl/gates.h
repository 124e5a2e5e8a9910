// Functions between 0 and 1, right for arguments of any size: no difference of large numbers, no NaN.
#pragma once
inline float sigmoid(float x) { return 1.0f / (1.0f + metal::precise::exp(-x)); }
inline float silu(float x) { return x / (1.0f + metal::precise::exp(-x)); }
/// log(1 + exp(x)). log1p(e) = 2 atanh(e / (2 + e)), a series in a square of at most 1/9: Metal has no log1p, and 1 + e loses e.
inline float softplus(float x) {
    const float e = metal::precise::exp(-metal::fabs(x)), s = e / (2.0f + e), z = s * s;
    float series = 1.0f / 15.0f;
    series = metal::fma(series, z, 1.0f / 13.0f);
    series = metal::fma(series, z, 1.0f / 11.0f);
    series = metal::fma(series, z, 1.0f / 9.0f);
    series = metal::fma(series, z, 1.0f / 7.0f);
    series = metal::fma(series, z, 1.0f / 5.0f);
    series = metal::fma(series, z, 1.0f / 3.0f);
    series = metal::fma(series, z, 1.0f);
    return metal::fmax(x, 0.0f) + 2.0f * s * series;
}
