// Attend of many rows (attention/attend.rs), heads of 256, eight of them to a KV head: a block of the grid, of eight warps or, for few rows, of
// four, takes neighbouring tokens of a KV head, a warp two of them with their eight heads. That is 16 rows of a product: lane (g, t) has
// head g of the first token and head g of the second. So what a warp sees of the keys is two numbers, and only the tiles of its
// diagonal are masked.
//
// Queries stay in registers, as do the sums. Keys and values come in tiles of 32, from key 0 on, whatever rows there are, by asynchronous
// copies a tile ahead: 80 KiB of threadgroup memory, which every GPU since Ampere gives. In it pieces of 16 bytes are exchanged within a row, so
// that eight rows of one column lie in different banks. A key's scores: all 256 elements in their order. A row's bits depend
// neither on how a prompt was cut nor on the rows beside it: tiles that it does not see add nothing to its sums.
//
// There is one barrier a tile. Behind it the first half of the warps multiply queries with keys, make weights, and multiply values; the other
// half multiply the values of the tile before first. Of eight, warps w and w + 4 share a scheduler, and so one's exponentials run while
// the other keeps the tensor cores busy.
//
// Scores are in units of log2(e). As in the shared text (msl/tile_softmax.h) `top` follows the largest score only when that is more than
// eight above: weights stay below 2^8, and most tiles need no fade.
constexpr u32 WIDTH = 256, HEADS = 8, WARPS = LAUNCH_THREADS / 32, KEYS = 32, PAGE = 64, TOKENS = 2 * WARPS;
constexpr u32 ROW = 2 * WIDTH, TILE = KEYS * ROW;    // bytes
constexpr u32 KEY_STAGES = 2, VALUE_STAGES = 3;      // the later warps are a tile behind with values
constexpr float UNSEEN = -1e30f, SLACK = 8.0f;       // finite: nothing here is infinite or NaN

struct AttendTilesParams { u32 rows, kv_heads; float scale; };

#ifdef ACT_IS_BF16
#define OPERANDS "bf16.bf16"
#define PACK "cvt.rn.bf16x2.f32"
__device__ inline float first_of(u32 pair) { return low_bf16(pair); }
__device__ inline float second_of(u32 pair) { return high_bf16(pair); }
#else
#define OPERANDS "f16.f16"
#define PACK "cvt.rn.f16x2.f32"
__device__ inline float first_of(u32 pair) { return __low2float(halves_of(pair)); }
__device__ inline float second_of(u32 pair) { return __high2float(halves_of(pair)); }
#endif

__device__ inline void mma_act(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." OPERANDS ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Four blocks of eight rows by 16 bytes; lane l names row l % 8 of block l / 8.
__device__ inline void load_blocks(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
/// The same, each transposed.
__device__ inline void load_blocks_t(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
/// With 0 bytes to read, zeros are written.
__device__ inline void copy16(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// Without the branches of an exact division, of which the end would have 256.
__device__ inline float quick_sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ inline u32 both(float low, float high) {
    u32 pair;
    asm(PACK " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS, 8 / WARPS)
attend_tiles_native__cuda(const ACT* q, const ACT* qg, const u32* positions, FINE* out, const ACT* keys, const ACT* values, const u32* slots,
                          AttendTilesParams p) {
    extern __shared__ uint4 memory[];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // The last tokens, which see most, come first.
    const u32 kv = blockIdx.x % p.kv_heads, block = gridDim.x / p.kv_heads - 1 - blockIdx.x / p.kv_heads, slot = blockIdx.y;
    // Positions and pages are older than the plan.
    const u32* pages = slots + slots[slot * 4 + 2];
    const u32 first_row = slot * p.rows, last = p.rows - 1;
    // Behind the last token it stands again.
    const u32 token[2] = {first_row + min(block * TOKENS + 2 * warp, last), first_row + min(block * TOKENS + 2 * warp + 1, last)};
    const u32 seen[2] = {positions[token[0]] + 1, positions[token[1]] + 1};
    const bool is_idle = block * TOKENS + 2 * warp > last;
    const u32 least = min(seen[0], seen[1]), most = is_idle ? 0 : max(seen[0], seen[1]);
    const u32 end = positions[first_row + min(block * TOKENS + TOKENS - 1, last)] + 1;
    // The head of a row, counted over all tokens; 32 bits, for there is not a register left.
    const u32 head[2] = {(token[0] * p.kv_heads + kv) * HEADS + g, (token[1] * p.kv_heads + kv) * HEADS + g};

    // A thread copies 16 bytes of rows `warp`, `warp` + WARPS and so on of a tile.
    const u32 key_memory = (u32)__cvta_generic_to_shared(memory), value_memory = key_memory + KEY_STAGES * TILE;
    const u32 copy_to = warp * ROW + (lane ^ warp) * 16;
    auto copy = [&](u32 key, u32 page, u32 key_stage, u32 value_stage) {
        const u64 from = (((u64)page * p.kv_heads + kv) * PAGE + key % PAGE + warp) * WIDTH + lane * 8;
#pragma unroll
        for (u32 i = 0; i < KEYS / WARPS; ++i) {
            const u32 row = i * WARPS, bytes = key + warp + row < end ? 16 : 0, to = (copy_to ^ row % 8 * 16) + row * ROW;
            copy16(key_memory + key_stage * TILE + to, keys + from + row * WIDTH, bytes);
            copy16(value_memory + value_stage * TILE + to, values + from + row * WIDTH, bytes);
        }
    };
    u32 page = pages[0], key_stage = 0, value_stage = 0;
    wait_for_the_one_before();
    copy(0, page, 0, 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (KEYS < end) page = pages[KEYS / PAGE];

    u32 query[WIDTH / 16][4];
#pragma unroll
    for (u32 k = 0; k < WIDTH / 16; ++k)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) query[k][i] = *(const u32*)(q + (u64)head[i % 2] * WIDTH + k * 16 + i / 2 * 8 + 2 * t);
    float sum[WIDTH / 8][4], top[2] = {UNSEEN, UNSEEN}, weight[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 n = 0; n < WIDTH / 8; ++n)
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum[n][i] = 0.0f;

    // Where a lane's row of a block is. Columns of keys and values go up by 32 bytes: bits 5 and 6 are exchanged with the row's, those above
    // are not.
    const u32 key_at = (lane / 16 * 8 + lane % 8) * ROW + ((lane / 8 % 2) ^ lane % 8) * 16;
    const u32 value_at = lane % 16 * ROW + ((lane / 16) ^ lane % 8) * 16;
    u32 weights[KEYS / 16][4]; // rounded, as the first factor of the product with values
    auto multiply_values = [&](u32 stage) {
        const u32 tile = value_memory + stage * TILE;
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; ++k)
#pragma unroll
            for (u32 n = 0; n < WIDTH / 16; ++n) {
                u32 b[4];
                load_blocks_t(b, tile + k * 16 * ROW + (value_at ^ n % 4 * 32) + n / 4 * 128);
                mma_act(sum[2 * n], weights[k], b[0], b[1]);
                mma_act(sum[2 * n + 1], weights[k], b[2], b[3]);
            }
    };

    const bool is_later = warp >= WARPS / 2;
    bool is_pending = false;
    u32 stage_before = 0;
    for (u32 key = 0; key < end; key += KEYS) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); // this tile is there, and everybody is through with the last but one's values and the last one's keys
        const u32 next_key_stage = key_stage ^ 1, next_value_stage = value_stage == VALUE_STAGES - 1 ? 0 : value_stage + 1;
        if (key + KEYS < end) {
            copy(key + KEYS, page, next_key_stage, next_value_stage);
            if (key + 2 * KEYS < end) page = pages[(key + 2 * KEYS) / PAGE];
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (is_pending) multiply_values(stage_before);
        is_pending = false;
        if (key < most) {
            float score[KEYS / 8][4];
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) score[n][i] = 0.0f;
            const u32 tile = key_memory + key_stage * TILE;
#pragma unroll
            for (u32 k = 0; k < WIDTH / 16; ++k)
#pragma unroll
                for (u32 n = 0; n < KEYS / 16; ++n) {
                    u32 b[4];
                    load_blocks(b, tile + n * 16 * ROW + (key_at ^ k % 4 * 32) + k / 4 * 128);
                    mma_act(score[2 * n], query[k], b[0], b[1]);
                    mma_act(score[2 * n + 1], query[k], b[2], b[3]);
                }
            if (key + KEYS > least) {
#pragma unroll
                for (u32 n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4; ++i)
                        if (key + 8 * n + 2 * t + i % 2 >= seen[i / 2]) score[n][i] = UNSEEN;
            }
            float high[2], fade[2];
            bool has_grown = false;
#pragma unroll
            for (u32 r = 0; r < 2; ++r) {
                high[r] = fmaxf(score[0][2 * r], score[0][2 * r + 1]);
#pragma unroll
                for (u32 n = 1; n < KEYS / 8; ++n) high[r] = fmaxf(high[r], fmaxf(score[n][2 * r], score[n][2 * r + 1]));
                high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 1));
                high[r] = fmaxf(high[r], __shfl_xor_sync(0xffffffffu, high[r], 2)) * p.scale;
                fade[r] = 1.0f;
                if (high[r] > top[r] + SLACK) {
                    fade[r] = power_of_2(top[r] - high[r]);
                    top[r] = high[r];
                    weight[r] *= fade[r];
                    has_grown = true;
                }
            }
            if (__any_sync(0xffffffffu, has_grown)) {
#pragma unroll
                for (u32 n = 0; n < WIDTH / 8; ++n)
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) sum[n][i] *= fade[i / 2];
            }
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    score[n][i] = power_of_2(fmaf(score[n][i], p.scale, -top[i / 2]));
                    weight[i / 2] += score[n][i];
                }
                weights[n / 2][n % 2 * 2] = both(score[n][0], score[n][1]);
                weights[n / 2][n % 2 * 2 + 1] = both(score[n][2], score[n][3]);
            }
            if (is_later) is_pending = true;
            else multiply_values(value_stage);
        }
        stage_before = value_stage;
        key_stage = next_key_stage;
        value_stage = next_value_stage;
    }
    if (is_pending) multiply_values(stage_before);
    let_the_next_one_start();

#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
        weight[r] += __shfl_xor_sync(0xffffffffu, weight[r], 1);
        weight[r] += __shfl_xor_sync(0xffffffffu, weight[r], 2);
        const float share = 1.0f / weight[r];
        const ACT* gate = qg + (2 * (u64)head[r] + 1) * WIDTH + 2 * t;
        const bool is_there = block * TOKENS + 2 * warp + r <= last;
        // Lane t has elements 2 t and 2 t + 1 of each eight: four lanes exchange what they have of four eights, and each stores one.
#pragma unroll
        for (u32 m = 0; m < WIDTH / 32; ++m) {
            u32 words[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 n = 4 * m + i, gates = *(const u32*)(gate + n * 8);
                const float a = sum[n][2 * r] * share * quick_sigmoid(first_of(gates)), b = sum[n][2 * r + 1] * share * quick_sigmoid(second_of(gates));
                words[i] = bits_of(__halves2half2(fine_of(a), fine_of(b)));
            }
#pragma unroll
            for (u32 bit = 1; bit <= 2; bit *= 2)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    if (i & bit) continue;
                    const bool is_second = t & bit;
                    const u32 other = __shfl_xor_sync(0xffffffffu, is_second ? words[i] : words[i | bit], bit);
                    if (is_second) words[i] = other;
                    else words[i | bit] = other;
                }
            if (is_there) *(uint4*)(out + (u64)head[r] * WIDTH + (4 * m + t) * 8) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}
