// Matmul and NormMatmul of one to four rows (gemv.cuh): SPLIT_K warps share a tile, a block goes from tiles to tiles, and the next
// weights are on their way while these are multiplied.
constexpr bool NORM_IS_F32 = FUNCTION_CONSTANT_4;
constexpr u32 WARPS = FUNCTION_CONSTANT_5, SPLIT_K = FUNCTION_CONSTANT_6, AT_ONCE = WARPS / SPLIT_K;
constexpr u32 SHARE = (ALL_GROUPS + SPLIT_K - 1) / SPLIT_K, GROUPS = SHARE < 4 ? SHARE : 4, STEPS = (SHARE + GROUPS - 1) / GROUPS;
constexpr u32 COLUMNS = NORM ? 2 * ROWS : ROWS;

struct MatmulParams { u32 outputs, width0, width1, width2; float eps; };

#if NORM
extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
norm_matmul_native__cuda(const float* x, const bf16* norm, const u32* weight, const bf16* scales, const bf16* biases, void* out, MatmulParams p) {
#else
extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
matmul_native__cuda(const FINE* x, const u32* weight, const bf16* scales, const bf16* biases, void* out, MatmulParams p) {
#endif
    extern __shared__ uint4 memory[];
    auto& columns = *(Columns<COLUMNS, ALL_GROUPS>*)memory;
    __shared__ float part[2][WARPS][16][ROWS];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 begin = min(warp % SPLIT_K * SHARE, ALL_GROUPS), end = min(begin + SHARE, ALL_GROUPS), tiles = (p.outputs + 15) / 16;
    const Matrix matrix = {weight, scales, biases};
    Weights<GROUPS> now;
    u32 tile = blockIdx.x * AT_ONCE;
    auto load = [&](Weights<GROUPS>& w, u32 first_tile, u32 step) {
        const u32 row = (first_tile + warp / SPLIT_K) * 16 + g;
        load_step<SHARE>(w, matrix, min(row, p.outputs - 1), matrix, min(row + 8, p.outputs - 1), begin, end, step, t);
    };
    load(now, tile, 0);
#if NORM
    __shared__ float squares[WARPS][ROWS];
    NormedRows<32 * WARPS> rows;
    rows.load_norm(norm, NORM_IS_F32, thread);
    wait_for_the_one_before();
    rows.load(x, squares, thread);
    __syncthreads();
    rows.place(columns, squares, p.eps, thread);
#else
    wait_for_the_one_before();
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) place_halves(columns, x + r * INPUTS, r, ALL_GROUPS, thread, 32 * WARPS);
#endif
    __syncthreads();
    const PartOutput to = {out, ROWS, p.outputs, p.width0, p.width1, p.width2};
    for (u32 turn = 0; tile < tiles; turn ^= 1) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const u32 next_tile = tile + gridDim.x * AT_ONCE;
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            Weights<GROUPS> next;
            const bool last = step + 1 == STEPS;
            if (!last || next_tile < tiles) load(next, last ? next_tile : tile, last ? 0 : step + 1);
            add_step<NORM, SHARE>(sums, now, columns, begin, end, step, g, t);
            now = next;
        }
        if (next_tile >= tiles) let_the_next_one_start();
        leave<NORM>(part[turn][warp], sums, g, t);
        if (SPLIT_K == 1) __syncwarp();
        else __syncthreads();
        // The first warp of a tile's stores it.
        const u32 own = SPLIT_K == 1 ? lane : warp % SPLIT_K * 32 + lane;
        for (u32 i = own; i < 16 * ROWS; i += 32 * SPLIT_K) {
            const u32 o = (tile + warp / SPLIT_K) * 16 + i % 16, r = i / 16;
            float sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < SPLIT_K; ++w) sum += part[turn][warp / SPLIT_K * SPLIT_K + w][i % 16][r];
            if (o < p.outputs) to.store(r, o, sum);
        }
        tile = next_tile;
    }
}
