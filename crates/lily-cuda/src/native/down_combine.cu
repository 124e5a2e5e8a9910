// DownCombine (gemv.cuh): a tile of 16 outputs of a row; each slot, and the shared expert behind them, has WARPS warps of its own.
constexpr u32 TOP_K = FUNCTION_CONSTANT_3, WARPS = FUNCTION_CONSTANT_4;
constexpr u32 SHARE = (ALL_GROUPS + WARPS - 1) / WARPS, GROUPS = SHARE < 4 ? SHARE : 4, STEPS = (SHARE + GROUPS - 1) / GROUPS;
constexpr u32 ALL_WARPS = (TOP_K + 1) * WARPS;

struct DownParams { u32 experts, outputs; };

extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS)
down_combine_native__cuda(const FINE* act, const float* logits, const FINE* shared_act, const float* shared_gate, const u32* down_weight,
                          const bf16* down_scales, const bf16* down_biases, const u32* shared_weight, const bf16* shared_scales,
                          const bf16* shared_biases, float* out, DownParams p) {
    extern __shared__ uint4 memory[];
    auto* columns = (Columns<1, ALL_GROUPS>*)memory;
    __shared__ float part[ALL_WARPS][16][ROWS];
    __shared__ u32 chosen[32];
    __shared__ float weights[32];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4, slot = warp / WARPS;
    const u32 row = blockIdx.y, begin = min(warp % WARPS * SHARE, ALL_GROUPS), end = min(begin + SHARE, ALL_GROUPS);
    const u32 low = min(blockIdx.x * 16 + g, p.outputs - 1), high = min(blockIdx.x * 16 + g + 8, p.outputs - 1);
    const bool shared = slot == TOP_K;
    Weights<GROUPS> now;
    auto load = [&](Weights<GROUPS>& w, u32 step) {
        const Matrix matrix = {shared ? shared_weight : down_weight, shared ? shared_scales : down_scales, shared ? shared_biases : down_biases};
        const u32 start = shared ? 0 : chosen[slot] * p.outputs;
        load_step<SHARE>(w, matrix, start + low, matrix, start + high, begin, end, step, t);
    };
    if (shared) load(now, 0);
    // Older than the launch before (`native::early`).
    const u32 o = blockIdx.x * 16 + thread;
    const bool has_output = thread < 16 && o < p.outputs;
    float before = 0.0f, share_of_shared = 0.0f;
    if (has_output) {
        before = out[(u64)row * p.outputs + o];
        share_of_shared = sigmoid(shared_gate[row]);
    }
    wait_for_the_one_before();
    if (warp == 0) {
        const Choice choice = choose(logits + (u64)row * p.experts, p.experts, TOP_K, lane);
        chosen[lane] = choice.expert;
        weights[lane] = weight_of(choice, TOP_K, lane);
    }
    const FINE* own = shared ? shared_act + (u64)row * INPUTS : act + ((u64)row * TOP_K + slot) * INPUTS;
    place_halves(columns[slot], own, 0, ALL_GROUPS, thread % (32 * WARPS), 32 * WARPS);
    __syncthreads();
    if (!shared) load(now, 0);
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        Weights<GROUPS> next;
        if (step + 1 < STEPS) load(next, step + 1);
        add_step<false, SHARE>(sums, now, columns[slot], begin, end, step, g, t);
        now = next;
    }
    let_the_next_one_start();
    leave<false>(part[warp], sums, g, t);
    __syncthreads();
    if (has_output) {
        float sum = 0.0f;
        for (u32 s = 0; s <= TOP_K; ++s) {
            float product = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) product += part[s * WARPS + w][thread][0];
            sum = fmaf(s < TOP_K ? weights[s] : share_of_shared, product, sum);
        }
        out[(u64)row * p.outputs + o] = before + sum;
    }
}
