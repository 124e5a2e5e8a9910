// What memory and tensor cores give at most (roof.rs).

// Reads `count` vectors, a block its own stretch after the other; the sum is written only if it is what no memory holds, so that the
// reads are not left out.
extern "C" __global__ void __launch_bounds__(512) read_all(const uint4* from, unsigned long long count, unsigned int* out) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride), d = __ldcs(from + i + 3 * stride);
        sum.x ^= a.x ^ b.x ^ c.x ^ d.x;
        sum.y ^= a.y ^ b.y ^ c.y ^ d.y;
        sum.z ^= a.z ^ b.z ^ c.z ^ d.z;
        sum.w ^= a.w ^ b.w ^ c.w ^ d.w;
    }
    for (; i < count; i += stride) {
        const uint4 a = __ldcs(from + i);
        sum.x ^= a.x;
        sum.y ^= a.y;
        sum.z ^= a.z;
        sum.w ^= a.w;
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) *out = sum.x;
}

// Products of 16 x 16 by 16 x 8 in registers: eight sums a warp take turns.
extern "C" __global__ void __launch_bounds__(256) multiply(unsigned int rounds, float* out) {
    float sums[8][4] = {};
    const unsigned int a = 0x3c003c00u + threadIdx.x, b = 0x3c003c00u;
    for (unsigned int i = 0; i < rounds; ++i) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                         : "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3])
                         : "r"(a), "r"(a), "r"(b), "r"(a), "r"(b), "r"(b));
        }
    }
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) sum += sums[n][0] + sums[n][1] + sums[n][2] + sums[n][3];
    if (sum == 0.123f) *out = sum;
}
