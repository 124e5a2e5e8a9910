// AttendStep and AttendStepBlocks of one row (attention/attend_step.rs): a block of the grid takes a block of keys of a KV head and the eight
// query heads that share it. Its warps take turns at tiles of sixteen keys, from memory into registers and tensor cores:
//
// - scores: heads by keys. The eight heads are rows 0 to 7 of the product, and what is left of q when it is rounded rows 8 to 15, so q
//   counts with two of its type's mantissas. Lane (g, t) has head g and keys 2 t and 2 t + 1 of each eight.
// - values: heads by width, the weights rounded and what that leaves in two products. Which element of a head is which column of the
//   product is free: lane g reads eight neighbours of a value, one for each of eight products.
//
// A block of keys is `block` keys up to a position of `reach`, and `far` keys from there on (attention.rs).
// A block goes through the blocks of keys gridDim.x apart, and the first keys of the next are on their way while this one's sums meet.
//
// Scores are in units of log2(e). No threadgroup memory and no barrier comes between a warp and its keys.
constexpr bool Q_NORM_IS_F32 = FUNCTION_CONSTANT_0, K_NORM_IS_F32 = FUNCTION_CONSTANT_1;
constexpr u32 WIDTH = 256, HEADS = 8, WARPS = 8, KEYS = 16, PAGE = 64;

struct AttendParams { u32 kv_heads, block, blocks, pairs, reach, far; float ratio_high, ratio_low, eps, scale; };

#ifdef ACT_IS_BF16
__device__ inline u32 rounded(float a, float b) { const __nv_bfloat162 v = __floats2bfloat162_rn(a, b); return *(const u32*)&v; }
__device__ inline float first_of(u32 pair) { return low_bf16(pair); }
__device__ inline float second_of(u32 pair) { return high_bf16(pair); }
#define OPERANDS "bf16.bf16"
#else
__device__ inline u32 rounded(float a, float b) { return bits_of(__floats2half2_rn(a, b)); }
__device__ inline float first_of(u32 pair) { return __low2float(halves_of(pair)); }
__device__ inline float second_of(u32 pair) { return __high2float(halves_of(pair)); }
#define OPERANDS "f16.f16"
#endif

__device__ inline void mma_act(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." OPERANDS ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The product of two numbers, each the sum of two floats (msl/rope.h).
__device__ inline float2 wide_product(float2 a, float2 b) {
    const float high = __fmul_rn(a.x, b.x), low = fmaf(a.x, b.y, fmaf(a.y, b.x, fmaf(a.x, b.x, -high)));
    const float sum = __fadd_rn(high, low);
    return make_float2(sum, __fsub_rn(low, __fsub_rn(sum, high)));
}
__device__ inline float rope_frequency(float ratio_high, float ratio_low, u32 j) {
    float2 power = make_float2(ratio_high, ratio_low), out = make_float2(1.0f, 0.0f);
    for (; j != 0; j >>= 1) {
        if (j & 1) out = wide_product(out, power);
        power = wide_product(power, power);
    }
    return out.x;
}

/// A head with norm and RoPE into `row`, by a warp; lane l has elements 8 l and on.
__device__ inline void prepare(float* row, const ACT* x, const bf16* norm, bool is_f32, const float2* turns, u32 pairs, float eps, u32 lane) {
    const uint4 raw = *(const uint4*)(x + 8 * lane);
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
    float v[8], sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        v[2 * i] = first_of(words[i]);
        v[2 * i + 1] = second_of(words[i]);
        sum = fmaf(v[2 * i], v[2 * i], sum);
        sum = fmaf(v[2 * i + 1], v[2 * i + 1], sum);
    }
    const float scale = rsqrtf(lane_sum<32>(sum) / (float)WIDTH + eps);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) v[i] = v[i] * scale * plain_value(norm, is_f32, 8 * lane + i);
    *(float4*)(row + 8 * lane) = make_float4(v[0], v[1], v[2], v[3]);
    *(float4*)(row + 8 * lane + 4) = make_float4(v[4], v[5], v[6], v[7]);
    __syncwarp();
    for (u32 j = lane; j < pairs; j += 32) {
        const float a = row[j], b = row[j + pairs];
        const float2 turn = turns[j];
        row[j] = fmaf(a, turn.x, -(b * turn.y));
        row[j + pairs] = fmaf(b, turn.x, a * turn.y);
    }
    __syncwarp();
}

struct Shared {
    uint4 q[8][2][32];          // of 32 elements each: heads rounded, and what that left, as lanes take them
    float heads[HEADS][WIDTH];
    float key[WIDTH];
    float2 turns[WIDTH / 2];
    float tops[WARPS][HEADS], weights[WARPS][HEADS];
    float4 sums[WARPS][16][32]; // of a warp, as lanes have them
};

#if WHOLE
extern "C" __global__ void __launch_bounds__(256, 1)
attend_step_native__cuda(const ACT* qg, const ACT* k, const ACT* v, const bf16* q_norm, const bf16* k_norm, const u32* positions, FINE* out,
                         ACT* keys, ACT* values, const u32* slots, AttendParams p) {
#else
extern "C" __global__ void __launch_bounds__(256, 1)
attend_step_blocks_native__cuda(const ACT* qg, const ACT* k, const ACT* v, const bf16* q_norm, const bf16* k_norm, const u32* positions,
                                float* partial, ACT* keys, ACT* values, const u32* slots, AttendParams p) {
#endif
    extern __shared__ uint4 memory[];
    Shared& shared = *(Shared*)memory;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 kv = blockIdx.y, slot = blockIdx.z, heads = p.kv_heads * HEADS;
    u32 block = blockIdx.x;
    // The cache before the new token, its position and the pages are older than the plan.
    const u32 position = positions[slot], span = position < p.reach ? p.block : p.far, count = position / span + 1;
    if (block >= count) return;
    // The last block, with the new key, belongs to one block of the grid.
    const bool has_new = (count - 1) % gridDim.x == block;
    const u32* pages = slots + slots[slot * 4 + 2];
    auto cache_at = [&](u32 at) { return ((u64)pages[at / PAGE] * p.kv_heads + kv) * PAGE * WIDTH + at % PAGE * WIDTH; };
    for (u32 j = thread; j < p.pairs; j += 256) {
        const float angle = (float)position * rope_frequency(p.ratio_high, p.ratio_low, j);
        shared.turns[j] = make_float2(cosf(angle), sinf(angle));
    }
    u32 begin = block * span, end = min(position + 1, begin + span), tile = begin + warp * KEYS;
    uint4 key[2][8];
    auto load_keys = [&](u32 from) {
        const ACT* row = keys + cache_at(from) + g * WIDTH + 8 * t;
#pragma unroll
        for (u32 n = 0; n < 2; ++n)
#pragma unroll
            for (u32 c = 0; c < 8; ++c) key[n][c] = *(const uint4*)(row + n * 8 * WIDTH + c * 32);
    };
    // The new key is not there yet.
    const bool early = tile < end && tile + KEYS <= position;
    if (early) load_keys(tile);
    wait_for_the_one_before();
    __syncthreads();
    prepare(shared.heads[warp], qg + 2 * ((u64)slot * heads + kv * HEADS + warp) * WIDTH, q_norm, Q_NORM_IS_F32, shared.turns, p.pairs, p.eps, lane);
    if (has_new && warp == 0) {
        const u64 at = ((u64)slot * p.kv_heads + kv) * WIDTH, to = cache_at(position);
        prepare(shared.key, k + at, k_norm, K_NORM_IS_F32, shared.turns, p.pairs, p.eps, lane);
        for (u32 i = lane; i < WIDTH; i += 32) {
            keys[to + i] = act_of(shared.key[i]);
            values[to + i] = v[at + i];
        }
    }
    __syncthreads(); // what one warp of a block has stored the others read
    // Eight elements of a head a thread, in the order in which lanes take them.
    {
        const u32 c = warp, head = lane / 4, at = c * 32 + lane % 4 * 8;
        u32 high[4], low[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float a = shared.heads[head][at + 2 * i] * p.scale, b = shared.heads[head][at + 2 * i + 1] * p.scale;
            high[i] = rounded(a, b);
            low[i] = rounded(a - first_of(high[i]), b - second_of(high[i]));
        }
        shared.q[c][0][lane] = make_uint4(high[0], high[1], high[2], high[3]);
        shared.q[c][1][lane] = make_uint4(low[0], low[1], low[2], low[3]);
    }
    if (!early && tile < end) load_keys(tile);
    __syncthreads();

    const float none = __uint_as_float(0xff800000u);
    const u32 stride = p.blocks * (WIDTH + 2);
    while (true) {
        float top = none, weight = 0.0f, sum[4][8][2];
#pragma unroll
        for (u32 c = 0; c < 4; ++c)
#pragma unroll
            for (u32 j = 0; j < 8; ++j) sum[c][j][0] = sum[c][j][1] = 0.0f;
        const u32 next_block = block + gridDim.x;
        for (; tile < end; tile += WARPS * KEYS) {
            const ACT* row = values + cache_at(tile) + 8 * g;
            // Half of a head's width at a time, so that everything stays in registers.
            uint4 value[4][2];
            auto load_values = [&](u32 half) {
#pragma unroll
                for (u32 r = 0; r < 4; ++r)
#pragma unroll
                    for (u32 c = 0; c < 2; ++c) {
                        value[r][c] = *(const uint4*)(row + (r / 2 * 8 + 2 * t + r % 2) * WIDTH + (2 * half + c) * 64);
                    }
            };
            load_values(0);
            float s[2][2][4]; // two chains of products for each eight keys
#pragma unroll
            for (u32 n = 0; n < 2; ++n)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) s[n][0][i] = s[n][1][i] = 0.0f;
#pragma unroll
            for (u32 c = 0; c < 8; ++c) {
                const uint4 high = shared.q[c][0][lane], low = shared.q[c][1][lane];
#pragma unroll
                for (u32 n = 0; n < 2; ++n) {
                    mma_act(s[n][0][0], s[n][0][1], s[n][0][2], s[n][0][3], high.x, low.x, high.y, low.y, key[n][c].x, key[n][c].y);
                    mma_act(s[n][1][0], s[n][1][1], s[n][1][2], s[n][1][3], high.z, low.z, high.w, low.w, key[n][c].z, key[n][c].w);
                }
            }
            float score[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 n = i / 2, e = i % 2, at = tile + n * 8 + 2 * t + e;
                score[i] = at < end ? (s[n][0][e] + s[n][1][e]) + (s[n][0][e + 2] + s[n][1][e + 2]) : none;
            }
            float most = fmaxf(fmaxf(score[0], score[1]), fmaxf(score[2], score[3]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            if (__any_sync(0xffffffffu, most > top)) {
                const float higher = fmaxf(most, top), fade = exp2f(top - higher); // at least one key is there, so `higher` is a number
                top = higher;
                weight *= fade;
#pragma unroll
                for (u32 c = 0; c < 4; ++c)
#pragma unroll
                    for (u32 j = 0; j < 8; ++j) {
                        sum[c][j][0] *= fade;
                        sum[c][j][1] *= fade;
                    }
            }
            u32 high[2], low[2];
#pragma unroll
            for (u32 n = 0; n < 2; ++n) {
                const float a = exp2f(score[2 * n] - top), b = exp2f(score[2 * n + 1] - top);
                weight += a + b;
                high[n] = rounded(a, b);
                low[n] = rounded(a - first_of(high[n]), b - second_of(high[n]));
            }
            const u32 following = tile + WARPS * KEYS;
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                // A value behind the end may be anything.
                if (tile + KEYS > end) {
#pragma unroll
                    for (u32 r = 0; r < 4; ++r)
                        if (tile + r / 2 * 8 + 2 * t + r % 2 >= end) value[r][0] = value[r][1] = make_uint4(0, 0, 0, 0);
                }
                float unused0 = 0.0f, unused1 = 0.0f;
#pragma unroll
                for (u32 c = 0; c < 2; ++c)
#pragma unroll
                    for (u32 j = 0; j < 8; ++j) {
                        auto word = [&](u32 r) { return j < 2 ? value[r][c].x : j < 4 ? value[r][c].y : j < 6 ? value[r][c].z : value[r][c].w; };
                        const u32 which = j % 2 ? 0x7632u : 0x5410u;
                        const u32 b0 = __byte_perm(word(0), word(1), which), b1 = __byte_perm(word(2), word(3), which);
                        float(&to)[2] = sum[2 * half + c][j];
                        mma_act(to[0], to[1], unused0, unused1, high[0], 0u, high[1], 0u, b0, b1);
                        mma_act(to[0], to[1], unused0, unused1, low[0], 0u, low[1], 0u, b0, b1);
                    }
                if (half == 0) {
                    load_values(1);
                    // The next keys, of the next block of keys after the last tile of this one.
                    if (following < end) load_keys(following);
                    else if (next_block < count && next_block * span + warp * KEYS <= position) load_keys(next_block * span + warp * KEYS);
                }
            }
        }
        if (next_block >= count) let_the_next_one_start();
        weight += __shfl_xor_sync(0xffffffffu, weight, 1);
        weight += __shfl_xor_sync(0xffffffffu, weight, 2);
        if (t == 0) {
            shared.tops[warp][g] = top;
            shared.weights[warp][g] = weight;
        }
        __syncthreads();
        float most = none;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) most = fmaxf(most, shared.tops[w][g]);
        const float fade = exp2f(top - most);
#pragma unroll
        for (u32 c = 0; c < 4; ++c)
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
#pragma unroll
                for (u32 q = 0; q < 2; ++q)
                    shared.sums[warp][c * 4 + e * 2 + q][lane] =
                        make_float4(sum[c][4 * q][e] * fade, sum[c][4 * q + 1][e] * fade, sum[c][4 * q + 2][e] * fade, sum[c][4 * q + 3][e] * fade);
        __syncthreads();
        const u64 first_head = (u64)slot * heads + kv * HEADS;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            // A thread has four elements of a head: those that lane `lane` of every warp has.
            const u32 part = warp + WARPS * i;
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) {
                const float4 four = shared.sums[w][part][lane];
                total.x += four.x;
                total.y += four.y;
                total.z += four.z;
                total.w += four.w;
            }
            const u32 element = part / 4 * 64 + (2 * t + part / 2 % 2) * 8 + part % 2 * 4;
#if WHOLE
            // One block of keys: what attend_combine.cu would make of it, to the bit.
            float mass = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) mass = fmaf(shared.weights[w][g], exp2f(shared.tops[w][g] - most), mass);
            const ACT* gate = qg + (2 * (first_head + g) + 1) * WIDTH + element;
            FINE* to = out + (first_head + g) * WIDTH + element;
            to[0] = fine_of(total.x / mass * sigmoid(act_value(gate[0])));
            to[1] = fine_of(total.y / mass * sigmoid(act_value(gate[1])));
            to[2] = fine_of(total.z / mass * sigmoid(act_value(gate[2])));
            to[3] = fine_of(total.w / mass * sigmoid(act_value(gate[3])));
#else
            float2* to = (float2*)(partial + (first_head + g) * stride + block * (WIDTH + 2) + element);
            to[0] = make_float2(total.x, total.y);
            to[1] = make_float2(total.z, total.w);
#endif
        }
#if !WHOLE
        if (thread < HEADS) {
            float highest = none, mass = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) highest = fmaxf(highest, shared.tops[w][thread]);
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) mass = fmaf(shared.weights[w][thread], exp2f(shared.tops[w][thread] - highest), mass);
            *(float2*)(partial + (first_head + thread) * stride + block * (WIDTH + 2) + WIDTH) = make_float2(highest, mass);
        }
#endif
        block = next_block;
        if (block >= count) break;
        begin = block * span;
        end = min(position + 1, begin + span);
        tile = begin + warp * KEYS;
        __syncthreads(); // the sums have been read
    }
}
