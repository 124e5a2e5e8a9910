// AttendCombine (attention/attend_combine.rs): blocks of keys together; a block of the grid for 32 elements of a head, its warps take turns at
// blocks of keys.
constexpr u32 WIDTH = 256, WARPS = 8;

struct CombineParams { u32 query_heads, block, blocks; };

#if WHOLE
extern "C" __global__ void __launch_bounds__(256)
attend_step_combine_native__cuda(const ACT* qg, const ACT* k, const ACT* v, const bf16* q_norm, const bf16* k_norm, const u32* positions,
                                 FINE* out, ACT* keys, ACT* values, const u32* slots, CombineParams p, const float* partial) {
#else
extern "C" __global__ void __launch_bounds__(256)
attend_combine_native__cuda(const float* partial, const ACT* qg, const u32* positions, FINE* out, CombineParams p) {
#endif
    __shared__ float tops[WARPS], sums[WARPS][32], weights[WARPS];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x, element = blockIdx.y * 32 + lane;
    const u32 count = positions[head / p.query_heads] / p.block + 1, stride = WIDTH + 2;
    const float* blocks = partial + (u64)head * p.blocks * stride;
    wait_for_the_one_before();
    float top = __uint_as_float(0xff800000u);
    for (u32 b = thread; b < count; b += 256) top = fmaxf(top, blocks[(u64)b * stride + WIDTH]);
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w]);
    float sum = 0.0f, weight = 0.0f;
#pragma unroll 4
    for (u32 b = warp; b < count; b += WARPS) {
        const float* block = blocks + (u64)b * stride;
        const float fade = exp2f(block[WIDTH] - top);
        weight = fmaf(block[WIDTH + 1], fade, weight);
        sum = fmaf(block[element], fade, sum);
    }
    sums[warp][lane] = sum;
    if (lane == 0) weights[warp] = weight;
    __syncthreads();
    if (warp == 0) {
        float total = 0.0f, all = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            total += sums[w][lane];
            all += weights[w];
        }
        out[(u64)head * WIDTH + element] = fine_of(total / all * sigmoid(act_value(qg[(2 * (u64)head + 1) * WIDTH + element])));
    }
}
