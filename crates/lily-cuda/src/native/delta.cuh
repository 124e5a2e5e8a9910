// What texts of Gated DeltaNet share: heads of 128 keys and 128 values, a convolution of four taps.
constexpr u32 DIM = 128, TAPS = 4;

/// log(1 + exp(x)), right for any x.
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

/// The four taps of a channel.
__device__ inline float4 taps_of(const bf16* conv, bool is_f32, u32 channel) {
    if (is_f32) return ((const float4*)conv)[channel];
    const uint2 raw = ((const uint2*)conv)[channel];
    return make_float4(low_bf16(raw.x), high_bf16(raw.x), low_bf16(raw.y), high_bf16(raw.y));
}

/// Two sums over a warp of eight rows each, a row's in the four lanes from 4 row on: 16 exchanges for 16 sums of 32 terms.
__device__ inline void row_sums(float (&a)[8], float (&b)[8], u32 lane) {
    // Each exchange halves what a lane still adds up: the upper half of the lanes takes the upper half of the rows.
#pragma unroll
    for (u32 step = 16, left = 4; step >= 4; step /= 2, left /= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (u32 i = 0; i < left; ++i) {
            const float give_a = upper ? a[i] : a[i + left], give_b = upper ? b[i] : b[i + left];
            const float keep_a = upper ? a[i + left] : a[i], keep_b = upper ? b[i + left] : b[i];
            a[i] = keep_a + __shfl_xor_sync(0xffffffffu, give_a, step);
            b[i] = keep_b + __shfl_xor_sync(0xffffffffu, give_b, step);
        }
    }
#pragma unroll
    for (u32 step = 2; step > 0; step /= 2) {
        a[0] += __shfl_xor_sync(0xffffffffu, a[0], step);
        b[0] += __shfl_xor_sync(0xffffffffu, b[0], step);
    }
}
