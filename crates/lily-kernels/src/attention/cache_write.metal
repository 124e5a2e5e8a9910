// Keys or values into the cache (attention/cache_write.rs): a simdgroup for each head of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention.h"

struct CacheWriteParams { uint rows; uint heads; uint width; uint units; };

kernel void cache_write(device const ACT* x [[buffer(0)]],
                        device const uint* positions [[buffer(1)]],
                        device ACT* cache [[buffer(2)]],
                        device const uint* slots [[buffer(3)]],
                        constant CacheWriteParams& p [[buffer(4)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    const uint unit = group * 8 + simd;
    if (unit >= p.units) return;
    const uint row = unit / p.heads;
    const ulong from = ulong(unit) * p.width, to = cache_at(slots, row / p.rows, positions[row], unit % p.heads, p.heads, p.width);
    for (uint i = lane; i < p.width; i += 32) cache[to + i] = x[from + i];
}
