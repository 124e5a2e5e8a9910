// Matmul of any number of rows (gemm.cuh).
constexpr u32 MT = FUNCTION_CONSTANT_2, NT = FUNCTION_CONSTANT_3, WM = FUNCTION_CONSTANT_4, WN = FUNCTION_CONSTANT_5;

struct MatmulParams { u32 rows, inputs, outputs, width0, width1, width2; };

struct PlainRows {
    const FINE* x;
    u32 inputs;
    __device__ const FINE* row(u32 i) const { return x + (u64)i * inputs; }
};
struct OneMatrix {
    Matrix of;
    u32 first, outputs;
    __device__ Matrix matrix(u32) const { return of; }
    __device__ u32 row(u32 r) const { return min(first + r, outputs - 1); }
};

extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS)
matmul_tiles_native__cuda(const FINE* x, const u32* weight, const bf16* scales, const bf16* biases, void* out, MatmulParams p) {
    extern __shared__ uint4 memory[];
    const u32 warp = threadIdx.x / 32, block = blockIdx.x * WM * 16 * MT;
    const u32 col = block + warp % WM * 16 * MT, row = blockIdx.y * 8 * NT * WN, rows = min(p.rows - row, 8 * NT * WN);
    float sums[MT][NT][4];
    wait_for_the_one_before();
    gemm<MT, NT, WM, WN>(sums, memory, PlainRows{x + (u64)row * p.inputs, p.inputs}, rows, OneMatrix{{weight, scales, biases}, block, p.outputs}, p.inputs);
    let_the_next_one_start();
    __syncthreads();
    float* staging = (float*)memory + warp * 8 * (16 * MT + 4);
    const u32 mine = warp / WM * 8 * NT;
    const bool whole = p.width0 % 8 == 0 && p.width1 % 8 == 0 && p.width2 % 8 == 0 && p.outputs % 8 == 0;
    store_sums<MT, NT>(sums, staging, [&](u32 r, u32 first, const float(&v)[8]) {
        const u32 o = col + first, n = row + mine + r;
        if (mine + r >= rows || o >= p.outputs) return;
        if (!whole) {
            const PartOutput to = {out, p.rows, p.outputs, p.width0, p.width1, p.width2};
            for (u32 i = 0; i < 8 && o + i < p.outputs; ++i) to.store(n, o + i, v[i]);
            return;
        }
        u32 start = 0, width = p.width0;
        if (o >= width) {
            start = width; width = p.width1;
            if (o >= start + width) {
                start += width; width = p.width2;
                if (o >= start + width) { start += width; width = p.outputs - start; }
            }
        }
        const u64 at = (u64)p.rows * start + (u64)n * width + (o - start);
        if constexpr (OUT == 3) {
            put_fine((FINE*)out, at, v, 8);
        } else if constexpr (OUT == 0) {
            ACT all[8];
#pragma unroll
            for (u32 i = 0; i < 8; ++i) all[i] = act_of(v[i]);
            *(uint4*)((ACT*)out + at) = *(const uint4*)all;
        } else {
            float4* to = (float4*)((float*)out + at);
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                float4 four = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
                if constexpr (OUT == 2) {
                    const float4 was = to[i];
                    four = make_float4(was.x + four.x, was.y + four.y, was.z + four.z, was.w + four.w);
                }
                to[i] = four;
            }
        }
    });
}
