// The choice of a row's experts by one simdgroup: the largest logits, the lower expert first where they are equal.
#pragma once
using namespace metal;
/// Orders logits as integers, all above 0: -0 as 0, and a NaN somewhere, so that it is chosen at most once too.
inline uint top_k_key(float logit) {
    const uint bits = as_type<uint>(logit), value = bits << 1 ? bits : 0u;
    return max(value ^ (value >> 31 ? 0xffffffffu : 0x80000000u), 1u);
}
inline float top_k_logit(uint key) { return as_type<float>(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

/// Gives lane j the expert of slot j and its key, for the first `slots` slots: at most 32, and no more than experts. All
/// lanes call it. A lane owns neighbouring experts, so that among lanes with equal keys the first one has the lowest expert.
inline void top_k_choose(device const float* logits, uint experts, uint slots, uint lane, thread uint& expert, thread uint& key) {
    constexpr uint HELD = 8;
    const uint share = (experts + 31) / 32, first = lane * share;
    uint keys[HELD];
    uint head = 0, head_at = 0; // the largest key that this lane still has
    if (share <= HELD) {
        UNROLL
        for (uint i = 0; i < HELD; ++i) keys[i] = i < share && first + i < experts ? top_k_key(logits[first + i]) : 0u;
    } else {
        for (uint i = 0; i < share && first + i < experts; ++i) {
            const uint k = top_k_key(logits[first + i]);
            if (k > head) { head = k; head_at = i; }
        }
    }
    expert = 0;
    key = 0;
    for (uint slot = 0; slot < slots; ++slot) {
        if (share <= HELD) {
            uint best[HELD], at[HELD];
            UNROLL
            for (uint i = 0; i < HELD; ++i) { best[i] = keys[i]; at[i] = i; }
            UNROLL
            for (uint step = 1; step < HELD; step *= 2) {
                UNROLL
                for (uint i = 0; i < HELD; i += 2 * step)
                    if (best[i + step] > best[i]) { best[i] = best[i + step]; at[i] = at[i + step]; }
            }
            head = best[0];
            head_at = at[0];
        }
        const uint largest = simd_max(head);
        const uint votes = uint(ulong(simd_ballot(head == largest)));
        const ushort winner = ushort(ctz(votes));
        const uint chosen = simd_shuffle(first + head_at, winner);
        if (lane == slot) { expert = chosen; key = largest; }
        if (lane != winner) continue;
        // The winner's expert is taken.
        if (share <= HELD) {
            UNROLL
            for (uint i = 0; i < HELD; ++i) if (i == head_at) keys[i] = 0;
        } else {
            const uint taken = head_at;
            head = 0;
            for (uint i = 0; i < share && first + i < experts; ++i) {
                const uint k = top_k_key(logits[first + i]);
                if (k > head && (k < largest || (k == largest && i > taken))) { head = k; head_at = i; }
            }
        }
    }
}

/// The weight of slot `lane` after `top_k_choose` of all slots: the softmax over the chosen; 0 for lanes without a slot.
inline float top_k_weight(uint key, uint slots, uint lane) {
    const float largest = top_k_logit(simd_shuffle(key, ushort(0)));
    const float p = lane < slots ? precise::exp(top_k_logit(key) - largest) : 0.0f;
    return p / simd_sum(p);
}
