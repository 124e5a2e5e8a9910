// SiluMul: a thread four elements (quant/silu_mul.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "gates.h"
using namespace metal;

struct SiluMulParams { uint len; };

kernel void silu_mul(device const FINE* gate [[buffer(0)]],
                     device const FINE* up [[buffer(1)]],
                     device FINE* out [[buffer(2)]],
                     constant SiluMulParams& p [[buffer(3)]],
                     uint group [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]]) {
    const uint first = (group * threads + thread_index) * 4;
    if (first + 4 <= p.len) {
        float g[4], u[4];
        fine_load4(g, gate + first);
        fine_load4(u, up + first);
        UNROLL
        for (uint i = 0; i < 4; ++i) g[i] = silu(g[i]) * u[i];
        fine_store4(out + first, g[0], g[1], g[2], g[3]);
    } else {
        for (uint i = first; i < p.len; ++i) out[i] = fine_of(silu(float(gate[i])) * float(up[i]));
    }
}
