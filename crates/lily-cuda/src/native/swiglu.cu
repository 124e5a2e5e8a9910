// NormSwiglu and RoutedSwiglu (gemv.cuh): a tile is eight rows of gate and the same rows of up. With ROUTED a block's second coordinate is a
// pair (row, slot), whose expert it chooses itself.
constexpr bool NORM_IS_F32 = FUNCTION_CONSTANT_4;
constexpr u32 WARPS = FUNCTION_CONSTANT_5, SHARE = (ALL_GROUPS + WARPS - 1) / WARPS, GROUPS = SHARE < 4 ? SHARE : 4;
constexpr u32 STEPS = (SHARE + GROUPS - 1) / GROUPS;

struct SwigluParams { u32 outputs, experts, top_k; float eps; };

#if ROUTED
KERNEL(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
routed_swiglu_native__cuda(const float* x, const bf16* norm, const float* logits, const u32* gate_weight, const bf16* gate_scales,
                           const bf16* gate_biases, const u32* up_weight, const bf16* up_scales, const bf16* up_biases, FINE* out, SwigluParams p) {
#else
KERNEL(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
norm_swiglu_native__cuda(const float* x, const bf16* norm, const u32* gate_weight, const bf16* gate_scales, const bf16* gate_biases,
                         const u32* up_weight, const bf16* up_scales, const bf16* up_biases, FINE* out, SwigluParams p) {
#endif
    extern __shared__ uint4 memory[];
    auto& columns = *(Columns<2 * ROWS, ALL_GROUPS>*)memory;
    __shared__ float part[WARPS][16][ROWS];
    __shared__ float squares[WARPS][ROWS];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 begin = min(warp * SHARE, ALL_GROUPS), end = min(begin + SHARE, ALL_GROUPS);
    const u32 row = min(BLOCK_X * 8 + g, p.outputs - 1);
    Weights<GROUPS> now;
    const Matrix gate = {gate_weight, gate_scales, gate_biases}, up = {up_weight, up_scales, up_biases};
    auto load = [&](Weights<GROUPS>& w, u32 start, u32 step) { load_step<SHARE>(w, gate, start + row, up, start + row, begin, end, step, t); };
    NormedRows<32 * WARPS> rows;
    u32 start = 0;
    rows.load_norm(norm, NORM_IS_F32, thread);
#if ROUTED
    __shared__ u32 chosen;
    const u32 pair = blockIdx.y;
    wait_for_the_one_before();
    rows.load(x + (u64)(pair / p.top_k) * INPUTS, squares, thread);
    if (warp == 0) {
        const Choice choice = choose(logits + (u64)(pair / p.top_k) * p.experts, p.experts, pair % p.top_k + 1, lane);
        if (lane == pair % p.top_k) chosen = choice.expert;
    }
    __syncthreads();
    start = chosen * p.outputs;
    load(now, start, 0);
#else
    load(now, 0, 0);
    wait_for_the_one_before();
    rows.load(x, squares, thread);
    __syncthreads();
#endif
    rows.place(columns, squares, p.eps, thread);
    __syncthreads();
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        Weights<GROUPS> next;
        if (step + 1 < STEPS) load(next, start, step + 1);
        add_step<true, SHARE>(sums, now, columns, begin, end, step, g, t);
        now = next;
    }
    let_the_next_one_start();
    leave<true>(part[warp], sums, g, t);
    __syncthreads();
    for (u32 i = thread; i < 8 * ROWS; i += 32 * WARPS) {
        const u32 o = BLOCK_X * 8 + i % 8, r = i / 8;
        float gate = 0.0f, up = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            gate += part[w][i % 8][r];
            up += part[w][i % 8 + 8][r];
        }
#if ROUTED
        if (o < p.outputs) out[(u64)pair * p.outputs + o] = fine_of(silu(gate) * up);
#else
        if (o < p.outputs) out[(u64)r * p.outputs + o] = fine_of(silu(gate) * up);
#endif
    }
}
