// Attention of few rows over the cache (attention/attend.rs): a threadgroup for `PACK` query heads of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention_rows.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);
FUNCTION_CONSTANT(uint, PACK, 1);
FUNCTION_CONSTANT(bool, COALESCED, 2);

struct AttendRowsParams { uint rows; uint kv_heads; uint packs; float scale; };

kernel void attend_rows(device const ACT* q [[buffer(0)]],
                        device const ACT* qg [[buffer(1)]],
                        device const uint* positions [[buffer(2)]],
                        device FINE* out [[buffer(3)]],
                        device const ACT* keys [[buffer(4)]],
                        device const ACT* values [[buffer(5)]],
                        device const uint* slots [[buffer(6)]],
                        constant AttendRowsParams& p [[buffer(7)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint3 size [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, shared, SHARED_FLOATS);
    TG_ARRAY(float, tops, TOPS);
    const uint slot = group.z, row = slot * p.rows + group.x / p.packs, heads = p.kv_heads * p.packs * PACK;
    const ulong head = ulong(row) * heads + (group.y * p.packs + group.x % p.packs) * PACK;
    for (uint i = thread_index; i < MOST_PACKED * MOST_WIDTH; i += size.x) {
        const uint h = i / MOST_WIDTH, e = i % MOST_WIDTH;
        shared[i] = h < PACK && e < WIDTH ? float(q[(head + h) * WIDTH + e]) * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Seen seen = {keys, values, slots, slot, group.y, p.kv_heads, WIDTH, 0, positions[row] + 1, 0, (threadgroup const ACT*)shared, values};
    const IntoOut into = {out + head * WIDTH, qg + 2 * head * WIDTH, WIDTH};
    attend_packed<false, IntoOut>(seen, into, shared, tops, COALESCED, PACK, simd, size.x / 32, lane);
}
