// Attention of few rows over a long cache (attention/attend_blocks.rs): a threadgroup for a block of keys and `PACK` query heads of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention_rows.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);
FUNCTION_CONSTANT(uint, PACK, 1);
FUNCTION_CONSTANT(bool, COALESCED, 2);

struct AttendBlocksParams { uint rows; uint kv_heads; uint packs; uint block; uint blocks; float scale; };

kernel void attend_blocks(device const ACT* q [[buffer(0)]],
                          device const uint* positions [[buffer(1)]],
                          device float* partial [[buffer(2)]],
                          device const ACT* keys [[buffer(3)]],
                          device const ACT* values [[buffer(4)]],
                          device const uint* slots [[buffer(5)]],
                          constant AttendBlocksParams& p [[buffer(6)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint3 size [[threads_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, shared, SHARED_FLOATS);
    TG_ARRAY(float, tops, TOPS);
    const uint slot = group.z, row = slot * p.rows + group.x / p.packs, heads = p.kv_heads * p.packs * PACK;
    const uint kv = group.y % p.kv_heads, block = group.y / p.kv_heads, begin = block * p.block, end = positions[row] + 1;
    if (begin >= end) return;
    const ulong head = ulong(row) * heads + (kv * p.packs + group.x % p.packs) * PACK;
    for (uint i = thread_index; i < MOST_PACKED * MOST_WIDTH; i += size.x) {
        const uint h = i / MOST_WIDTH, e = i % MOST_WIDTH;
        shared[i] = h < PACK && e < WIDTH ? float(q[(head + h) * WIDTH + e]) * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Seen seen = {keys, values, slots, slot, kv, p.kv_heads, WIDTH, begin, min(end, begin + p.block), 0, (threadgroup const ACT*)shared, values};
    const uint stride = p.blocks * (WIDTH + 2);
    const IntoPartial into = {partial + head * stride + block * (WIDTH + 2), stride, WIDTH};
    attend_packed<false, IntoPartial>(seen, into, shared, tops, COALESCED, PACK, simd, size.x / 32, lane);
}
