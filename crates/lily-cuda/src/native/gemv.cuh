// Products of one to four rows with matrices of 4 or 8 bits in groups of 64, on tensor cores.
//
// A tile is 16 rows of matrices by all inputs; the warps of a block share the inputs, GROUPS groups of 64 each at a time. A lane of
// `mma.m16n8k16` holds four inputs of two rows; which inputs these are is free as long as x agrees, so lane t of a row takes the 16
// neighbouring inputs 16 t to 16 t + 15 of a group, one load, in the order in which nibbles fall out of a word: 0 4 1 5 2 6 3 7. Weights
// are the integers themselves, exact in half; scale and bias meet a group's sum in f32. The columns of the product are the rows of x:
// a row of halves is one column, a row of f32 is two, its nearest half and what that leaves, 2,048 times as large. So x counts with 22
// bits, and the columns that are empty cost nothing. No row's bits depend on the others.
//
// The second and third constants of a text are these, the first that of quant.cuh.
constexpr u32 INPUTS = FUNCTION_CONSTANT_1, ROWS = FUNCTION_CONSTANT_2, ALL_GROUPS = INPUTS / GROUP;
constexpr float LOW_SCALE = 2048.0f;

/// Some groups of a lane's two rows of a tile, on their way from memory.
template <u32 GROUPS>
struct Weights {
    uint2 words[GROUPS][2][WORDS];
    u32 scales[GROUPS][2], biases[GROUPS][2]; // bf16 in the high half
};

/// Whether warps that have GROUPS groups a step and SHARE in all never run past the end of a row.
template <u32 GROUPS, u32 SHARE>
constexpr bool EVEN = ALL_GROUPS % SHARE == 0 && SHARE % GROUPS == 0;

/// One side of a tile, the lane's row of it: group `first` and those behind it, of which `groups` are there, into registers.
template <bool ALL, u32 GROUPS>
__device__ inline void load_side(Weights<GROUPS>& w, u32 side, const Matrix& matrix, u32 row, u32 first, u32 groups, u32 t) {
    const u32* words = matrix.words + row * (INPUTS / 8 * WORDS) + first * 8 * WORDS + 2 * WORDS * t;
    const u32 at = row * ALL_GROUPS + first;
#pragma unroll
    for (u32 i = 0; i < GROUPS; ++i) {
        if (!ALL && i >= groups) continue;
        if constexpr (WORDS == 1) {
            w.words[i][side][0] = __ldg((const uint2*)(words + i * 8));
        } else {
            const uint4 all = __ldg((const uint4*)(words + i * 16));
            w.words[i][side][0] = make_uint2(all.x, all.y);
            w.words[i][side][1] = make_uint2(all.z, all.w);
        }
    }
    if constexpr (ALL && GROUPS == 4 && ALL_GROUPS % 4 == 0) {
        const uint2 s = __ldg((const uint2*)(matrix.scales + at)), b = __ldg((const uint2*)(matrix.biases + at));
        w.scales[0][side] = s.x << 16; w.scales[1][side] = s.x & 0xffff0000u;
        w.scales[2][side] = s.y << 16; w.scales[3][side] = s.y & 0xffff0000u;
        w.biases[0][side] = b.x << 16; w.biases[1][side] = b.x & 0xffff0000u;
        w.biases[2][side] = b.y << 16; w.biases[3][side] = b.y & 0xffff0000u;
    } else {
#pragma unroll
        for (u32 i = 0; i < GROUPS; ++i) {
            if (!ALL && i >= groups) continue;
            w.scales[i][side] = (u32)__ldg((const unsigned short*)matrix.scales + at + i) << 16;
            w.biases[i][side] = (u32)__ldg((const unsigned short*)matrix.biases + at + i) << 16;
        }
    }
}

/// Both sides of a tile, `low` and `high` being the lane's rows; step `step` of a warp's share, which ends at `end`.
template <u32 SHARE, u32 GROUPS>
__device__ inline void load_step(Weights<GROUPS>& w, const Matrix& one, u32 low, const Matrix& other, u32 high, u32 begin, u32 end, u32 step, u32 t) {
    const u32 first = begin + step * GROUPS;
    if constexpr (EVEN<GROUPS, SHARE>) {
        load_side<true>(w, 0, one, low, first, GROUPS, t);
        load_side<true>(w, 1, other, high, first, GROUPS, t);
    } else if (first < end) {
        load_side<false>(w, 0, one, low, first, end - first, t);
        load_side<false>(w, 1, other, high, first, end - first, t);
    }
}

/// The integers of a plane, eight inputs of a lane.
__device__ inline void eight_integers(u32 (&q)[4], const uint2 (&words)[WORDS], u32 plane) {
    if constexpr (WORDS == 1) integers(q, plane ? words[0].y : words[0].x, 0);
    else integers(q, words[plane].x, words[plane].y);
}

/// x in threadgroup memory: of each group two planes of eight inputs of each column and lane, and its sum for each row.
template <u32 COLUMNS, u32 X_GROUPS>
struct Columns {
    uint4 planes[X_GROUPS][2][COLUMNS][4];
    float sums[X_GROUPS][ROWS];

    /// Where eight inputs from k on of a column stand.
    __device__ uint4& place(u32 column, u32 k) { return planes[k / GROUP][k / 8 % 2][column][k % GROUP / 16]; }
};

/// Eight halves of neighbouring inputs in the order of the integers.
__device__ inline uint4 in_order(const half (&v)[8]) {
    constexpr bool NIBBLES = WORDS == 1;
    const u32 a[4] = {0, 1, 2, 3};
    u32 pair[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i)
        pair[i] = NIBBLES ? bits_of(__halves2half2(v[a[i]], v[a[i] + 4])) : bits_of(__halves2half2(v[2 * i], v[2 * i + 1]));
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/// Adds groups of a tile to a lane's sums: with pairs of columns (SPLIT) of row t, sums[0] of the tile's row lane / 4 and sums[1] of the
/// one eight further on; else sums[0] and [1] of rows 2 t and 2 t + 1, then the same eight further on. Columns and rows that are not
/// there repeat the last one, and what comes of them is nobody's.
template <bool SPLIT, bool ALL, u32 GROUPS, class X>
__device__ inline void add_groups(float (&sums)[4], const Weights<GROUPS>& w, const X& x, u32 first, u32 groups, u32 g, u32 t) {
    constexpr u32 COLUMNS = SPLIT ? 2 * ROWS : ROWS;
    const u32 column = min(g, COLUMNS - 1);
    float d[GROUPS][4];
#pragma unroll
    for (u32 i = 0; i < GROUPS; ++i) {
        if (!ALL && i >= groups) continue;
        d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.0f;
#pragma unroll
        for (u32 plane = 0; plane < 2; ++plane) {
            const uint4 b = x.planes[first + i][plane][column][t];
            u32 low[4], high[4];
            eight_integers(low, w.words[i][0], plane);
            eight_integers(high, w.words[i][1], plane);
            const u32 one[4] = {low[0], high[0], low[1], high[1]}, other[4] = {low[2], high[2], low[3], high[3]};
            mma(d[i], one, b.x, b.y);
            mma(d[i], other, b.z, b.w);
        }
    }
#pragma unroll
    for (u32 i = 0; i < GROUPS; ++i) {
        if (!ALL && i >= groups) continue;
#pragma unroll
        for (u32 side = 0; side < 2; ++side) {
            const float scale = __uint_as_float(w.scales[i][side]), bias = __uint_as_float(w.biases[i][side]);
            if constexpr (SPLIT) {
                const float dot = fmaf(d[i][2 * side + 1], 1.0f / LOW_SCALE, d[i][2 * side]);
                sums[side] = fmaf(scale, dot, fmaf(bias, x.sums[first + i][min(t, ROWS - 1)], sums[side]));
            } else {
#pragma unroll
                for (u32 c = 0; c < 2; ++c)
                    sums[2 * side + c] = fmaf(scale, d[i][2 * side + c], fmaf(bias, x.sums[first + i][min(2 * t + c, ROWS - 1)], sums[2 * side + c]));
            }
        }
    }
}

/// A step of a warp's share.
template <bool SPLIT, u32 SHARE, u32 GROUPS, class X>
__device__ inline void add_step(float (&sums)[4], const Weights<GROUPS>& w, const X& x, u32 begin, u32 end, u32 step, u32 g, u32 t) {
    const u32 first = begin + step * GROUPS;
    if constexpr (EVEN<GROUPS, SHARE>) add_groups<SPLIT, true>(sums, w, x, first, GROUPS, g, t);
    else if (first < end) add_groups<SPLIT, false>(sums, w, x, first, end - first, g, t);
}

/// Leaves a warp's sums of a tile in part[row of the tile][row of x].
template <bool SPLIT>
__device__ inline void leave(float (*part)[ROWS], const float (&sums)[4], u32 g, u32 t) {
#pragma unroll
    for (u32 side = 0; side < 2; ++side) {
        if constexpr (SPLIT) {
            if (t < ROWS) part[g + 8 * side][t] = sums[side];
        } else {
#pragma unroll
            for (u32 c = 0; c < 2; ++c)
                if (2 * t + c < ROWS) part[g + 8 * side][2 * t + c] = sums[2 * side + c];
        }
    }
}

/// A row of halves, which is its own column.
template <class X>
__device__ inline void place_halves(X& x, const FINE* row, u32 r, u32 groups, u32 thread, u32 threads) {
    // Whole warps go round, for the sums; eight threads a group.
    for (u32 i = thread; i / 32 * 32 < groups * 8; i += threads) {
        float sum = 0.0f;
        if (i < groups * 8) {
            const uint4 raw = *(const uint4*)(row + 8 * i);
            half v[8];
            *(uint4*)v = raw;
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sum += __half2float(v[j]);
            x.place(r, 8 * i) = in_order(v);
        }
        sum = lane_sum<8>(sum);
        if (i < groups * 8 && i % 8 == 0) x.sums[i / 8][r] = sum;
    }
}

/// Rows of f32 with an RMSNorm on the way: eight inputs of each row a thread, THREADS threads.
template <u32 THREADS>
struct NormedRows {
    static constexpr u32 EIGHTS = (INPUTS / 8 + THREADS - 1) / THREADS;
    float v[ROWS][EIGHTS][8], weight[EIGHTS][8];

    /// The norm's weights, which nothing has to be waited for.
    __device__ void load_norm(const bf16* norm, bool is_f32, u32 thread) {
#pragma unroll
        for (u32 e = 0; e < EIGHTS; ++e) {
            const u32 k = 8 * (thread + e * THREADS);
            if (k >= INPUTS) continue;
            if (is_f32) {
                *(float4*)weight[e] = ((const float4*)norm)[k / 4];
                *(float4*)(weight[e] + 4) = ((const float4*)norm)[k / 4 + 1];
            } else {
                const uint4 raw = *(const uint4*)(norm + k);
                const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    weight[e][2 * j] = low_bf16(words[j]);
                    weight[e][2 * j + 1] = high_bf16(words[j]);
                }
            }
        }
    }
    /// The rows, and their sums of squares by warp into `squares`.
    __device__ void load(const float* x, float (*squares)[ROWS], u32 thread) {
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (u32 e = 0; e < EIGHTS; ++e) {
                const u32 k = 8 * (thread + e * THREADS);
#pragma unroll
                for (u32 j = 0; j < 8; j += 4) {
                    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (k < INPUTS) four = *(const float4*)(x + (u64)r * INPUTS + k + j);
                    *(float4*)(v[r][e] + j) = four;
                    sum = fmaf(four.x, four.x, sum);
                    sum = fmaf(four.y, four.y, sum);
                    sum = fmaf(four.z, four.z, sum);
                    sum = fmaf(four.w, four.w, sum);
                }
            }
            sum = lane_sum<32>(sum);
            if (thread % 32 == 0) squares[thread / 32][r] = sum;
        }
    }
    /// The normed rows into two columns each, after a barrier behind `load`.
    template <class X>
    __device__ void place(X& to, float (*squares)[ROWS], float eps, u32 thread) {
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < THREADS / 32; ++w) sum += squares[w][r];
            const float scale = rsqrtf(sum / (float)INPUTS + eps);
#pragma unroll
            for (u32 e = 0; e < EIGHTS; ++e) {
                const u32 k = 8 * (thread + e * THREADS);
                half high[8], low[8];
                float total = 0.0f;
#pragma unroll
                for (u32 j = 0; j < 8; ++j) {
                    const float n = k < INPUTS ? v[r][e][j] * weight[e][j] * scale : 0.0f;
                    high[j] = __float2half_rn(n);
                    low[j] = __float2half_rn((n - __half2float(high[j])) * LOW_SCALE);
                    total += n;
                }
                total = lane_sum<8>(total);
                if (k >= INPUTS) continue;
                to.place(2 * r, k) = in_order(high);
                to.place(2 * r + 1, k) = in_order(low);
                if (thread % 8 == 0) to.sums[k / GROUP][r] = total;
            }
        }
    }
};
