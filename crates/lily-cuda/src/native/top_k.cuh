// The choice of a row's experts by one warp (msl/top_k.h): at most 32 slots of at most 256 experts.
struct Choice { u32 expert, key; };

/// Orders logits as integers, all above 0: -0 as 0.
__device__ inline u32 key_of(float logit) {
    const u32 bits = __float_as_uint(logit), value = bits << 1 ? bits : 0u;
    return max(value ^ (value >> 31 ? 0xffffffffu : 0x80000000u), 1u);
}
__device__ inline float logit_of(u32 key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

__device__ inline u32 warp_max(u32 x) { return __reduce_max_sync(0xffffffffu, x); }

/// Lane j gets the expert of slot j; the lower expert comes first where logits are equal.
__device__ inline Choice choose(const float* logits, u32 experts, u32 slots, u32 lane) {
    const u32 share = (experts + 31) / 32, first = lane * share; // at most 8, so that the lowest lane has the lowest experts
    u32 keys[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) keys[i] = i < share && first + i < experts ? key_of(logits[first + i]) : 0u;
    Choice choice = {0, 0};
    for (u32 slot = 0; slot < slots; ++slot) {
        u32 best = keys[0], at = 0;
#pragma unroll
        for (u32 i = 1; i < 8; ++i)
            if (keys[i] > best) { best = keys[i]; at = i; }
        const u32 largest = warp_max(best), winner = __ffs(__ballot_sync(0xffffffffu, best == largest)) - 1;
        const u32 expert = __shfl_sync(0xffffffffu, first + at, winner);
        if (lane == slot) choice = {expert, largest};
        if (lane == winner) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i)
                if (i == at) keys[i] = 0;
        }
    }
    return choice;
}

/// The weight of slot `lane`: the softmax over the chosen; 0 for lanes without a slot.
__device__ inline float weight_of(Choice choice, u32 slots, u32 lane) {
    const float largest = logit_of(__shfl_sync(0xffffffffu, choice.key, 0));
    const float p = lane < slots ? expf(logit_of(choice.key) - largest) : 0.0f;
    return p / lane_sum<32>(p);
}
