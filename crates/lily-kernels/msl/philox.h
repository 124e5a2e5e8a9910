// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011), the seed as its key, the step as its counter.
#pragma once
using namespace metal;
/// The first two words of the block of counter (step, 0).
inline uint2 philox(uint2 seed, uint step) {
    uint a = step, b = 0, c = 0, d = 0;
    for (uint i = 0; i < 10; ++i) {
        const uint first_high = mulhi(a, 0xD2511F53u), first_low = a * 0xD2511F53u;
        const uint second_high = mulhi(c, 0xCD9E8D57u), second_low = c * 0xCD9E8D57u;
        a = second_high ^ b ^ seed.x;
        b = second_low;
        c = first_high ^ d ^ seed.y;
        d = first_low;
        seed = uint2(seed.x + 0x9E3779B9u, seed.y + 0xBB67AE85u);
    }
    return uint2(a, b);
}
