// AttendCombine (attention/attend_combine.rs): blocks of keys together; a block of the grid for 32 elements of a head, its warps take turns at
// blocks of keys. How far each fades is made once for all warps, so that nothing stands between their loads.
constexpr u32 WIDTH = 256, WARPS = 16, THREADS = 32 * WARPS, SOME = 1024;

struct CombineParams { u32 query_heads, block, blocks, reach, far; };

extern "C" __global__ void __launch_bounds__(THREADS)
attend_combine_native__cuda(const float* partial, const ACT* qg, const u32* positions, FINE* out, CombineParams p) {
    __shared__ float tops[WARPS], sums[WARPS][32], weights[WARPS], fades[SOME];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x, element = blockIdx.y * 32 + lane;
    const u32 position = positions[head / p.query_heads];
    const u32 count = position / (position < p.reach ? p.block : p.far) + 1, stride = WIDTH + 2;
    const float* blocks = partial + (u64)head * p.blocks * stride;
    // The gate is older than the launch before (`native::early`).
    const float gate = warp == 0 ? sigmoid(act_value(qg[(2 * (u64)head + 1) * WIDTH + element])) : 0.0f;
    wait_for_the_one_before();
    float top = __uint_as_float(0xff800000u);
    for (u32 b = thread; b < count; b += THREADS) top = fmaxf(top, blocks[(u64)b * stride + WIDTH]);
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w]);
    float sum = 0.0f, weight = 0.0f;
    for (u32 start = 0; start < count; start += SOME) {
        const u32 some = min(SOME, count - start);
        __syncthreads();
        for (u32 i = thread; i < some; i += THREADS) {
            const float2 end = *(const float2*)(blocks + (u64)(start + i) * stride + WIDTH);
            const float fade = exp2f(end.x - top);
            fades[i] = fade;
            weight = fmaf(end.y, fade, weight);
        }
        __syncthreads();
#pragma unroll 8
        for (u32 i = warp; i < some; i += WARPS) sum = fmaf(blocks[(u64)(start + i) * stride + element], fades[i], sum);
    }
    sums[warp][lane] = sum;
    weight = lane_sum<32>(weight);
    if (lane == 0) weights[warp] = weight;
    __syncthreads();
    let_the_next_one_start();
    if (warp == 0) {
        float total = 0.0f, all = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; ++w) {
            total += sums[w][lane];
            all += weights[w];
        }
        out[(u64)head * WIDTH + element] = fine_of(total / all * gate);
    }
}
