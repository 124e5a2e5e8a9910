// A NormMatmul and a NormSwiglu of one stage as one launch: the router and the shared expert's first half, each too small for a GPU. The first
// blocks are the product's, SPLIT_AT of them, and the others SwiGLU's. Each has the constants and the threads that it has alone, so its bits
// are the same.
extern "C" __global__ void __launch_bounds__(LAUNCH_THREADS, 768 / LAUNCH_THREADS)
norm_matmul_and_swiglu_native__cuda(const float* x, const bf16* norm, const u32* weight, const bf16* scales, const bf16* biases, void* out,
                                    product::MatmulParams p, const float* swiglu_x, const bf16* swiglu_norm, const u32* gate_weight,
                                    const bf16* gate_scales, const bf16* gate_biases, const u32* up_weight, const bf16* up_scales,
                                    const bf16* up_biases, FINE* swiglu_out, swiglu::SwigluParams swiglu_p) {
    if (blockIdx.x < SPLIT_AT) product::norm_matmul_native__cuda(x, norm, weight, scales, biases, out, p);
    else
        swiglu::norm_swiglu_native__cuda(swiglu_x, swiglu_norm, gate_weight, gate_scales, gate_biases, up_weight, up_scales, up_biases,
                                         swiglu_out, swiglu_p);
}
