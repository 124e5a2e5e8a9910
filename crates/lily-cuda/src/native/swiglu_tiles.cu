// Swiglu of any number of rows (gemm.cuh): sixteens of gate and of up take turns, so that a lane has both.
constexpr u32 MT = FUNCTION_CONSTANT_1, NT = FUNCTION_CONSTANT_2, WM = FUNCTION_CONSTANT_3, WN = FUNCTION_CONSTANT_4;

struct SwigluParams { u32 rows, inputs, outputs; };

struct PlainRows {
    const FINE* x;
    u32 inputs;
    __device__ const FINE* row(u32 i) const { return x + (u64)i * inputs; }
};
struct TwoMatrices {
    Matrix gate, up;
    u32 first, outputs;
    __device__ Matrix matrix(u32 r) const { return r / 16 % 2 ? up : gate; }
    __device__ u32 row(u32 r) const { return min(first + r / 32 * 16 + r % 16, outputs - 1); }
};

extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS)
swiglu_tiles_native__cuda(const FINE* x, const u32* gate_weight, const bf16* gate_scales, const bf16* gate_biases, const u32* up_weight,
                          const bf16* up_scales, const bf16* up_biases, FINE* out, SwigluParams p) {
    extern __shared__ uint4 memory[];
    const u32 warp = threadIdx.x / 32, block = blockIdx.x * WM * 8 * MT;
    const u32 col = block + warp % WM * 8 * MT, row = blockIdx.y * 8 * NT * WN, rows = min(p.rows - row, 8 * NT * WN);
    float sums[MT][NT][4];
    wait_for_the_one_before();
    const TwoMatrices matrices = {{gate_weight, gate_scales, gate_biases}, {up_weight, up_scales, up_biases}, block, p.outputs};
    gemm<MT, NT, WM, WN>(sums, memory, PlainRows{x + (u64)row * p.inputs, p.inputs}, rows, matrices, p.inputs);
    let_the_next_one_start();
    __syncthreads();
    float* staging = (float*)memory + warp * 8 * (8 * MT + 4);
    const u32 mine = warp / WM * 8 * NT;
    store_pairs<MT, NT>(sums, staging, [&](u32 r, u32 first, const float(&v)[8]) {
        const u32 o = col + first;
        if (mine + r < rows && o < p.outputs) put_fine(out, (u64)(row + mine + r) * p.outputs + o, v, p.outputs - o);
    });
}
