// Products of many rows with matrices of 4 or 8 bits in groups of 64, on tensor cores (`mma.m16n8k16`).
//
// The matrix is the first factor: a warp has 16 MT of its rows and 8 NT rows of x, and makes the transposed product. So a lane turns
// integers into weights where the tensor cores want them, and weights never go through threadgroup memory. Lane t takes the 16 neighbouring
// inputs 16 t to 16 t + 15 of a group, in the order in which nibbles fall out of a word (0 4 1 5 2 6 3 7), and x is put in the same order on
// its way into threadgroup memory, where all warps of a block share it. The next three groups' integers and two of x are on their way
// meanwhile; there is one barrier a group.
//
// A weight is scale * q + bias, rounded once to half: scale and bias come as halves, 16 times as large, so that all of bfloat's eight bits are
// there from 2^-21 on, and a weight is finite up to 4,094. A sum runs over the inputs in one order whatever MT, NT and the shape of the
// block are: a row's bits do not depend on how many others there are.
constexpr float UP = 16.0f;

/// Eight weights of neighbouring inputs in the order of x: four pairs.
__device__ inline void weights_of(u32 (&w)[4], const u32 (&words)[2 * WORDS], u32 plane, half2 scale, half2 bias) {
    u32 q[4];
    integers(q, words[WORDS * plane], words[WORDS * plane + WORDS - 1]);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) w[i] = bits_of(__hfma2(halves_of(q[i]), scale, bias));
}

/// A number as a type.
template <u32 N>
struct Count { static constexpr u32 VALUE = N; };

__device__ inline void copy8(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}

__device__ inline half2 as_halves(unsigned short bits) { return __half2half2(__float2half_rn(__uint_as_float((u32)bits << 16) * UP)); }

/// Eight halves of x in the order of the weights.
__device__ inline uint4 in_order(uint4 v) {
    if constexpr (WORDS == 2) return v;
    return make_uint4(__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
}

/// Threadgroup memory of a block: groups of integers on their way, two fours of groups of scales and biases, two groups of x.
constexpr u32 STAGES = 4;
template <u32 ROWS, u32 TOKENS>
struct Stages {
    u32 words[STAGES][ROWS][8 * WORDS];
    unsigned short scales[2][ROWS][4], biases[2][ROWS][4];
    uint4 x[2][2][TOKENS][4];
};

/// The product of a block: WM warps along the matrix, WN along x, of which the block has 8 NT WN rows. `x.row(i)` is where row i of the
/// block begins, for i below `rows`; `place.row(r)` is a row of the matrix `place.matrix(r)`, r counting the block's. Inputs are a multiple of
/// four groups. Sums are UP times too large.
template <u32 MT, u32 NT, u32 WM, u32 WN, class Rows, class Place>
__device__ inline void gemm(float (&sums)[MT][NT][4], void* memory, const Rows& x, u32 rows, const Place& place, u32 inputs) {
    constexpr u32 THREADS = 32 * WM * WN, TOKENS = 8 * NT * WN, EIGHTS = TOKENS * 8, EACH = (EIGHTS + THREADS - 1) / THREADS;
    constexpr u32 ROWS = 16 * MT * WM, PIECES = 2 * WORDS, COPIES = ROWS * PIECES / THREADS, PAIRS = 2 * ROWS / THREADS;
    static_assert(ROWS * PIECES % THREADS == 0 && 2 * ROWS % THREADS == 0, "");
    auto& stages = *(Stages<ROWS, TOKENS>*)memory;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, token = warp / WM * 8 * NT + g;
    const u32 groups = inputs / GROUP;
#pragma unroll
    for (u32 m = 0; m < MT; ++m)
#pragma unroll
        for (u32 n = 0; n < NT; ++n)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
    // Sixteen bytes of a row's integers, and eight of scales or biases, a thread and copy.
    const char* words_from[COPIES];
    const char* pairs_from[PAIRS];
#pragma unroll
    for (u32 c = 0; c < COPIES; ++c) {
        const u32 i = thread + c * THREADS, r = i / PIECES;
        words_from[c] = (const char*)(place.matrix(r).words + (u64)place.row(r) * (inputs / 8 * WORDS)) + i % PIECES * 16;
    }
#pragma unroll
    for (u32 c = 0; c < PAIRS; ++c) {
        const u32 r = (thread + c * THREADS) % ROWS;
        const Matrix matrix = place.matrix(r);
        pairs_from[c] = (const char*)((thread + c * THREADS < ROWS ? matrix.scales : matrix.biases) + (u64)place.row(r) * groups);
    }
    auto copy = [&](u32 group) {
        if (group < groups) {
#pragma unroll
            for (u32 c = 0; c < COPIES; ++c) {
                const u32 i = thread + c * THREADS;
                copy16((char*)stages.words[group % STAGES][i / PIECES] + i % PIECES * 16, words_from[c] + group * 32 * WORDS);
            }
            if (group % 4 == 0) {
#pragma unroll
                for (u32 c = 0; c < PAIRS; ++c) {
                    const u32 i = thread + c * THREADS;
                    copy8((i < ROWS ? stages.scales : stages.biases)[group / 4 % 2][i % ROWS], pairs_from[c] + group * 2);
                }
            }
        }
        asm volatile("cp.async.commit_group;");
    };
    // Eight inputs of a row of x a thread, through registers; rows that are not there are the last one.
    uint4 next[EACH];
    const FINE* from[EACH];
#pragma unroll
    for (u32 e = 0; e < EACH; ++e) {
        const u32 i = thread + e * THREADS;
        from[e] = x.row(min(i / 8, rows - 1)) + i % 8 * 8;
    }
    auto fetch = [&](u32 group) {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e)
            if (EIGHTS % THREADS == 0 || thread + e * THREADS < EIGHTS) next[e] = *(const uint4*)(from[e] + group * GROUP);
    };
    auto store = [&](u32 buffer) {
#pragma unroll
        for (u32 e = 0; e < EACH; ++e) {
            const u32 i = thread + e * THREADS, row = i / 8, eight = i % 8;
            if (EIGHTS % THREADS == 0 || i < EIGHTS) stages.x[buffer][eight % 2][row][eight / 2] = in_order(next[e]);
        }
    };
#pragma unroll
    for (u32 group = 0; group + 1 < STAGES; ++group) copy(group);
    fetch(0);
    store(0);
    if (groups > 1) fetch(1);
    const u32 first = warp % WM * 16 * MT + g;
    for (u32 group = 0; group < groups; ++group) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads(); // this group is there, and everybody is through with the one before
        copy(group + STAGES - 1);
        if (group + 1 < groups) {
            store((group + 1) % 2);
            if (group + 2 < groups) fetch(group + 2);
        }
        u32 words[MT][2][2 * WORDS];
        half2 scale[MT][2], bias[MT][2];
#pragma unroll
        for (u32 m = 0; m < MT; ++m)
#pragma unroll
            for (u32 side = 0; side < 2; ++side) {
                const u32 r = first + 16 * m + 8 * side;
                const u32* at = stages.words[group % STAGES][r] + 2 * WORDS * t;
                if constexpr (WORDS == 1) *(uint2*)words[m][side] = *(const uint2*)at;
                else *(uint4*)words[m][side] = *(const uint4*)at;
                scale[m][side] = as_halves(stages.scales[group / 4 % 2][r][group % 4]);
                bias[m][side] = as_halves(stages.biases[group / 4 % 2][r][group % 4]);
            }
#pragma unroll
        for (u32 plane = 0; plane < 2; ++plane) {
            u32 w[MT][2][4];
#pragma unroll
            for (u32 m = 0; m < MT; ++m)
#pragma unroll
                for (u32 side = 0; side < 2; ++side) weights_of(w[m][side], words[m][side], plane, scale[m][side], bias[m][side]);
#pragma unroll
            for (u32 n = 0; n < NT; ++n) {
                const uint4 b = stages.x[group % 2][plane][token + n * 8][t];
#pragma unroll
                for (u32 m = 0; m < MT; ++m) {
                    const u32 one[4] = {w[m][0][0], w[m][1][0], w[m][0][1], w[m][1][1]};
                    const u32 other[4] = {w[m][0][2], w[m][1][2], w[m][0][3], w[m][1][3]};
                    mma(sums[m][n], one, b.x, b.y);
                    mma(sums[m][n], other, b.z, b.w);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/// What a warp has of eight rows of x, one after the other to whoever stores it: `at(row, first, values)` gets 8 neighbouring outputs from
/// `first` on, counted in the warp, of which there are 16 MT; `value(m, n, i)` is output i of a lane's four of eight rows n and sixteen m.
/// `staging` is the warp's own: 8 * (16 MT + 4) floats.
template <u32 MT, u32 NT, class Value, class Store>
__device__ inline void store_rows(const Value& value, float* staging, const Store& at) {
    constexpr u32 STRIDE = 16 * MT + 4;
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 n = 0; n < NT; ++n) {
        __syncwarp();
#pragma unroll
        for (u32 m = 0; m < MT; ++m)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) staging[(2 * t + i % 2) * STRIDE + 16 * m + g + i / 2 * 8] = value(m, n, i);
        __syncwarp();
#pragma unroll
        for (u32 e = lane; e < 8 * 2 * MT; e += 32) {
            const u32 row = e / (2 * MT), first = e % (2 * MT) * 8;
            const float* from = staging + row * STRIDE + first;
            float values[8];
            *(float4*)values = *(const float4*)from;
            *(float4*)(values + 4) = *(const float4*)(from + 4);
            at(n * 8 + row, first, values);
        }
    }
}

/// A warp's sums.
template <u32 MT, u32 NT, class Store>
__device__ inline void store_sums(const float (&sums)[MT][NT][4], float* staging, const Store& at) {
    store_rows<MT, NT>([&](u32 m, u32 n, u32 i) { return sums[m][n][i] * (1.0f / UP); }, staging, at);
}

/// Where sixteens of gate and of up take turns: SiLU(gate) * up, half as many outputs.
template <u32 MT, u32 NT, class Store>
__device__ inline void store_pairs(const float (&sums)[MT][NT][4], float* staging, const Store& at) {
    const auto pair = [&](u32 m, u32 n, u32 i) { return silu(sums[2 * m][n][i] * (1.0f / UP)) * (sums[2 * m + 1][n][i] * (1.0f / UP)); };
    store_rows<MT / 2, NT>(pair, staging, at);
}

/// Eight neighbours at `out + at`, of which `count` are there.
__device__ inline void put_fine(FINE* out, u64 at, const float (&v)[8], u32 count) {
    if (count >= 8 && at % 8 == 0) {
        half2 pairs[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) pairs[i] = __halves2half2(fine_of(v[2 * i]), fine_of(v[2 * i + 1]));
        *(uint4*)(out + at) = *(const uint4*)pairs;
    } else {
#pragma unroll
        for (u32 i = 0; i < 8; ++i)
            if (i < count) out[at + i] = fine_of(v[i]);
    }
}
