// What every native text starts with: types as plans name them, and the functions that all need. CUDA C++, no shim.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef __nv_bfloat16 bf16;

// A text's function, and its place in the grid. Where several kernels are one launch (join.cu) they are functions of it, and each has
// blocks of its own.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define BLOCK_X blockIdx.x
#define BLOCKS_X gridDim.x

// FINE: what activations are stored as; ACT: those of attention and the caches (msl/activation.h). Native texts are for 16 bits.
typedef half FINE;
#ifdef ACT_IS_BF16
typedef bf16 ACT;
__device__ inline ACT act_of(float v) { return __float2bfloat16_rn(v); }
__device__ inline float act_value(ACT v) { return __bfloat162float(v); }
#else
typedef half ACT;
__device__ inline ACT act_of(float v) { return __float2half_rn(isnan(v) ? v : fminf(fmaxf(v, -65504.0f), 65504.0f)); }
__device__ inline float act_value(ACT v) { return __half2float(v); }
#endif
__device__ inline FINE fine_of(float v) { return __float2half_rn(isnan(v) ? v : fminf(fmaxf(v, -65504.0f), 65504.0f)); }

// A kernel may start while the one before it still runs. Until it has waited it may read what is older than the plan, weights above
// all, and write nothing. A kernel lets the next one start when it has multiplied what it read: earlier, the next one's blocks would
// crowd on whatever multiprocessors have room (a scan of 128 blocks took three times as long so), later, nothing would overlap. One
// that has not waited yet must not let it start, or the one after the next could overtake it.
__device__ inline void wait_for_the_one_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_the_next_one_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ inline float plain_value(const bf16* p, bool is_f32, u32 i) {
    return is_f32 ? ((const float*)p)[i] : __bfloat162float(p[i]);
}

__device__ inline float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline u32 bits_of(half2 v) { return *(u32*)&v; }
__device__ inline half2 halves_of(u32 v) { return *(half2*)&v; }

template <int LANES>
__device__ inline float lane_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/// Sixteen bytes on their way into threadgroup memory, with the next `cp.async.commit_group`.
__device__ inline void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
