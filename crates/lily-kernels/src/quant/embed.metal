// Embed: a threadgroup a token, a thread for runs of 16 values (quant/embed.rs).
#include <metal_stdlib>
#include "portable.h"
#include "quant.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);

struct EmbedParams { uint width; };

kernel void embed(device const uint* tokens [[buffer(0)]],
                  device const uint* weight [[buffer(1)]],
                  device const bfloat* scales [[buffer(2)]],
                  device const bfloat* biases [[buffer(3)]],
                  device float* out [[buffer(4)]],
                  constant EmbedParams& p [[buffer(5)]],
                  uint row [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]],
                  uint threads [[threads_per_threadgroup]]) {
    const QuantMatrix matrix = {weight, scales, biases, p.width, BITS, GROUP};
    QuantRow w;
    quant_row(w, matrix, tokens[row]);
    for (uint k = thread_index * 16; k < p.width; k += threads * 16) {
        float v[16];
        quant_run16(v, w, k);
        device float* to = out + ulong(row) * p.width + k;
        UNROLL
        for (uint i = 0; i < 16; i += 4) *(device float4*)(to + i) = float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
}
