// The weighted sum of a row's experts and its shared expert, added to the residual: a thread for four neighbours of a row, or
// for one where rows are no multiple of four (moe/combine.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "gates.h"
using namespace metal;

FUNCTION_CONSTANT(bool, WEIGHTED, 0);

struct CombineParams { uint top_k; uint width; };

kernel void combine(device const FINE* expert_out [[buffer(0)]],
                    device const float* weights [[buffer(1)]],
                    device const FINE* shared [[buffer(2)]],
                    device const float* shared_gate [[buffer(3)]],
                    device float* x [[buffer(4)]],
                    constant CombineParams& p [[buffer(5)]],
                    uint2 group [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint2 threads [[threads_per_threadgroup]]) {
    const uint row = group.y, i = group.x * threads.x + thread_index;
    const ulong first = ulong(row) * p.top_k;
    const float share = sigmoid(shared_gate[row]);
    if (p.width % 4 == 0) {
        const uint width = p.width / 4;
        if (i >= width) return;
        device const vec<FINE, 4>* e = (device const vec<FINE, 4>*)expert_out + first * width + i;
        device float4* to = (device float4*)x + ulong(row) * width + i;
        float4 sum = float4(0.0f);
        for (uint j = 0; j < p.top_k; ++j)
            sum = fma(float4(WEIGHTED ? weights[first + j] : 1.0f), float4(e[j * width]), sum);
        sum = fma(float4(share), float4(((device const vec<FINE, 4>*)shared)[ulong(row) * width + i]), sum);
        *to = *to + sum;
    } else {
        if (i >= p.width) return;
        float sum = 0.0f;
        for (uint j = 0; j < p.top_k; ++j)
            sum = fma(WEIGHTED ? weights[first + j] : 1.0f, float(expert_out[(first + j) * p.width + i]), sum);
        sum = fma(share, float(shared[ulong(row) * p.width + i]), sum);
        x[ulong(row) * p.width + i] += sum;
    }
}
