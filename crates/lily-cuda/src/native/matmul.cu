// Matmul and NormMatmul of one to four rows (gemv.cuh): a block goes from tile to tile, and the next weights are on their way while these
// are multiplied.
constexpr bool NORM_IS_F32 = FUNCTION_CONSTANT_4;
constexpr u32 WARPS = FUNCTION_CONSTANT_5;
constexpr u32 SHARE = (ALL_GROUPS + WARPS - 1) / WARPS, GROUPS = SHARE < 4 ? SHARE : 4, STEPS = (SHARE + GROUPS - 1) / GROUPS;
constexpr u32 COLUMNS = NORM ? 2 * ROWS : ROWS;

struct MatmulParams { u32 outputs, width0, width1, width2; float eps; };

#if NORM
KERNEL(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
norm_matmul_native__cuda(const float* x, const bf16* norm, const u32* weight, const bf16* scales, const bf16* biases, void* out, MatmulParams p) {
#else
KERNEL(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
matmul_native__cuda(const FINE* x, const u32* weight, const bf16* scales, const bf16* biases, void* out, MatmulParams p) {
#endif
    extern __shared__ uint4 memory[];
    auto& columns = *(Columns<COLUMNS, ALL_GROUPS>*)memory;
    __shared__ float part[2][WARPS][16][ROWS];
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 begin = min(warp * SHARE, ALL_GROUPS), end = min(begin + SHARE, ALL_GROUPS), tiles = (p.outputs + 15) / 16;
    const Matrix matrix = {weight, scales, biases};
    Weights<GROUPS> now;
    u32 tile = BLOCK_X;
    auto load = [&](Weights<GROUPS>& w, u32 tile, u32 step) {
        const u32 row = tile * 16 + g;
        load_step<SHARE>(w, matrix, min(row, p.outputs - 1), matrix, min(row + 8, p.outputs - 1), begin, end, step, t);
    };
    load(now, tile, 0);
    const PartOutput to = {out, ROWS, p.outputs, p.width0, p.width1, p.width2};
    // What is added to is older than the launch before (`native::early`): of the first tile it is here in time.
    const u32 first_output = tile * 16 + thread % 16;
    const float first_before = thread < 16 * ROWS && first_output < p.outputs ? to.before(thread / 16, first_output) : 0.0f;
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
    for (u32 turn = 0; tile < tiles; turn ^= 1) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const u32 next_tile = tile + BLOCKS_X;
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
        __syncthreads();
        for (u32 i = thread; i < 16 * ROWS; i += 32 * WARPS) {
            const u32 o = tile * 16 + i % 16, r = i / 16;
            float sum = 0.0f;
#pragma unroll
            for (u32 w = 0; w < WARPS; ++w) sum += part[turn][w][i % 16][r];
            if (o < p.outputs) to.store(r, o, sum, tile == BLOCK_X && i == thread ? first_before : to.before(r, o));
        }
        tile = next_tile;
    }
}
