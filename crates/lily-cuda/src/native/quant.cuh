// Matrices of 4 or 8 bits in groups of 64 on tensor cores: what products of few and of many rows share. BITS is a text's first constant.
constexpr u32 BITS = FUNCTION_CONSTANT_0, GROUP = 64;
constexpr u32 WORDS = BITS / 4; // pairs of words that a lane takes of a group and row

/// A matrix, or several that stand one behind the other: rows are counted over all of them.
struct Matrix {
    const u32* words;
    const bf16* scales;
    const bf16* biases;
};

__device__ inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Eight integers as halves: of 4 bits those of one word, in the order 0 4 1 5 2 6 3 7; of 8 bits those of two, in theirs.
__device__ inline void integers(u32 (&q)[4], u32 word, u32 second) {
    constexpr u32 ONE = 0x64006400u; // 1024, whose lowest bit is 1
    const half2 offset = __half2half2(__float2half_rn(1024.0f));
    if constexpr (WORDS == 1) {
        const u32 next = word >> 8;
        const half2 sixteenth = __half2half2(__float2half_rn(0.0625f)), minus = __half2half2(__float2half_rn(-64.0f));
        q[0] = bits_of(__hsub2(halves_of((word & 0x000f000fu) | ONE), offset));
        q[1] = bits_of(__hfma2(halves_of((word & 0x00f000f0u) | ONE), sixteenth, minus));
        q[2] = bits_of(__hsub2(halves_of((next & 0x000f000fu) | ONE), offset));
        q[3] = bits_of(__hfma2(halves_of((next & 0x00f000f0u) | ONE), sixteenth, minus));
    } else {
        q[0] = bits_of(__hsub2(halves_of(__byte_perm(word, ONE, 0x5150)), offset));
        q[1] = bits_of(__hsub2(halves_of(__byte_perm(word, ONE, 0x5352)), offset));
        q[2] = bits_of(__hsub2(halves_of(__byte_perm(second, ONE, 0x5150)), offset));
        q[3] = bits_of(__hsub2(halves_of(__byte_perm(second, ONE, 0x5352)), offset));
    }
}
