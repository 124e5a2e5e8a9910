// The causal convolution of Gated DeltaNet for a few tokens of one channel. TAPS and CONV_IS_F32 are function constants of the text.
#pragma once
/// Tokens at once.
constant constexpr uint BLOCK = 4;
constant constexpr uint MOST_TAPS = 8;

/// The convolution's input of one channel, row 0 the oldest that is kept.
inline float history(device const float* kept, device const FINE* raw, ulong row, ulong channels) {
    return row < TAPS - 1 ? kept[row * channels] : float(raw[(row - (TAPS - 1)) * channels]);
}
/// Its sums for the tokens start ... start + count - 1, all that they read at once.
inline void convolve(thread float* sums, device const float* kept, device const FINE* raw, device const bfloat* w, uint c, uint start, uint count, ulong channels) {
    float tap[MOST_TAPS], x[MOST_TAPS - 1 + BLOCK];
    UNROLL for (uint j = 0; j < MOST_TAPS; ++j)
        if (j < TAPS) tap[j] = plain_value(w, CONV_IS_F32, c * TAPS + j);
    UNROLL for (uint i = 0; i < MOST_TAPS - 1 + BLOCK; ++i)
        if (i < TAPS - 1 + count) x[i] = history(kept + c, raw + c, start + i, channels);
    UNROLL for (uint r = 0; r < BLOCK; ++r) {
        sums[r] = 0.0f;
        if (r < count) {
            UNROLL for (uint j = 0; j < MOST_TAPS; ++j)
                if (j < TAPS) sums[r] = fma(tap[j], x[r + j], sums[r]);
        }
    }
}
