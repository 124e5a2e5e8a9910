// GroupedSwiglu and GroupedMatmul (gemm.cuh): a block for a tile of an expert's rows and some of its outputs; it computes no more rows than the
// tile has, in steps of 16, 32 and 64.
#if SWIGLU
constexpr bool GATHER = true;
constexpr u32 SCATTER = 0;
#else
constexpr bool GATHER = FUNCTION_CONSTANT_1;
constexpr u32 SCATTER = FUNCTION_CONSTANT_2; // 0 none, 1 by pair, 2 by pair and weighted
#endif
constexpr u32 MT = 2, WM = 4;

struct GroupedParams { u32 top_k, outputs, inputs, blocks; };

struct ExpertRows {
    const FINE* x;
    const u32* order;
    u32 inputs, first, top_k;
    __device__ const FINE* row(u32 i) const { return x + (u64)(GATHER ? order[first + i] / top_k : first + i) * inputs; }
};
struct ExpertMatrices {
    Matrix one, other;
    u32 start, first, outputs;
    __device__ Matrix matrix(u32 r) const { return SWIGLU && r / 16 % 2 ? other : one; }
    __device__ u32 row(u32 r) const { return start + min(first + (SWIGLU ? r / 32 * 16 + r % 16 : r), outputs - 1); }
};

#if SWIGLU
extern "C" __global__ void __launch_bounds__(128)
grouped_swiglu_native__cuda(const FINE* x, const u32* order, const u32* tiles, const u32* weight, const bf16* scales, const bf16* biases,
                            const u32* up_weight, const bf16* up_scales, const bf16* up_biases, FINE* out, GroupedParams p) {
    const Matrix other = {up_weight, up_scales, up_biases};
    constexpr u32 OF_WARP = 16;
#else
extern "C" __global__ void __launch_bounds__(128)
grouped_matmul_native__cuda(const FINE* x, const u32* order, const u32* tiles, const float* weights, const u32* weight, const bf16* scales,
                            const bf16* biases, FINE* out, GroupedParams p) {
    const Matrix other = {weight, scales, biases};
    constexpr u32 OF_WARP = 32;
#endif
    __shared__ __align__(16) Stages<16 * MT * WM, 64> memory;
    const u32 warp = threadIdx.x / 32, number = blockIdx.x / p.blocks;
    wait_for_the_one_before();
    if (number >= tiles[0]) return;
    const u32 expert = tiles[1 + 3 * number], first = tiles[2 + 3 * number], rows = tiles[3 + 3 * number];
    const u32 block = blockIdx.x % p.blocks * WM * OF_WARP, col = block + warp * OF_WARP;
    const ExpertRows from = {x, order, p.inputs, first, p.top_k};
    const ExpertMatrices matrices = {{weight, scales, biases}, other, expert * p.outputs, block, p.outputs};
    float* staging = (float*)&memory + warp * 8 * (16 * MT + 4);
    auto store = [&](u32 r, u32 of, const float(&v)[8]) {
        const u32 o = col + of;
        if (r >= rows || o >= p.outputs) return;
        u32 place = first + r;
#if SWIGLU
        put_fine(out, (u64)place * p.outputs + o, v, p.outputs - o);
#else
        if constexpr (SCATTER != 0) place = order[place];
        const float factor = SCATTER == 2 ? weights[place] : 1.0f;
        float scaled[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) scaled[i] = SCATTER == 2 ? v[i] * factor : v[i];
        put_fine(out, (u64)place * p.outputs + o, scaled, p.outputs - o);
#endif
    };
    auto run = [&](auto count) {
        constexpr u32 NT = decltype(count)::VALUE;
        float sums[MT][NT][4];
        gemm<MT, NT, WM, 1>(sums, &memory, from, rows, matrices, p.inputs);
        let_the_next_one_start();
        __syncthreads();
#if SWIGLU
        store_pairs<MT, NT>(sums, staging, store);
#else
        store_sums<MT, NT>(sums, staging, store);
#endif
    };
    if (rows <= 16) run(Count<2>{});
    else if (rows <= 32) run(Count<4>{});
    else run(Count<8>{});
}
