// Dequantize: a thread a run of 16 values (quant/dequantize.rs).
#include <metal_stdlib>
#include "portable.h"
#include "activation.h"
#include "quant.h"
using namespace metal;

FUNCTION_CONSTANT(uint, BITS, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);

struct DequantizeParams { uint rows; uint cols; };

kernel void dequantize(device const uint* weight [[buffer(0)]],
                       device const bfloat* scales [[buffer(1)]],
                       device const bfloat* biases [[buffer(2)]],
                       device FINE* out [[buffer(3)]],
                       constant DequantizeParams& p [[buffer(4)]],
                       uint group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint threads [[threads_per_threadgroup]]) {
    const uint run = group * threads + thread_index, runs = p.cols / 16, row = run / runs, k = run % runs * 16;
    if (row >= p.rows) return;
    const QuantMatrix matrix = {weight, scales, biases, p.cols, BITS, GROUP};
    QuantRow w;
    quant_row(w, matrix, row);
    float v[16];
    quant_run16(v, w, k);
    device FINE* to = out + ulong(row) * p.cols + k;
    UNROLL
    for (uint i = 0; i < 16; i += 4) fine_store4(to + i, v[i], v[i + 1], v[i + 2], v[i + 3]);
}
