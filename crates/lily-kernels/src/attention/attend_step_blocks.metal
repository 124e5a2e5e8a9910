// The attention of a decode step over a long cache (attention/attend_step_blocks.rs): a threadgroup for a block of keys and `PACK` query
// heads of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention_step.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);
FUNCTION_CONSTANT(uint, PACK, 1);
FUNCTION_CONSTANT(bool, COALESCED, 2);
FUNCTION_CONSTANT(bool, Q_NORM_IS_F32, 3);
FUNCTION_CONSTANT(bool, K_NORM_IS_F32, 4);

struct AttendStepBlocksParams { uint rows; uint kv_heads; uint packs; uint block; uint blocks; uint pairs; float ratio_high; float ratio_low; float eps; float scale; };

kernel void attend_step_blocks(device const ACT* qg [[buffer(0)]],
                               device const ACT* k [[buffer(1)]],
                               device const ACT* v [[buffer(2)]],
                               device const bfloat* q_norm [[buffer(3)]],
                               device const bfloat* k_norm [[buffer(4)]],
                               device const uint* positions [[buffer(5)]],
                               device float* partial [[buffer(6)]],
                               device ACT* keys [[buffer(7)]],
                               device ACT* values [[buffer(8)]],
                               device const uint* slots [[buffer(9)]],
                               constant AttendStepBlocksParams& p [[buffer(10)]],
                               uint3 group [[threadgroup_position_in_grid]],
                               uint thread_index [[thread_index_in_threadgroup]],
                               uint3 size [[threads_per_threadgroup]],
                               uint lane [[thread_index_in_simdgroup]],
                               uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(float, shared, SHARED_FLOATS);
    TG_ARRAY(float, tops, TOPS);
    TG_ARRAY(Eight, fresh, MOST_ROWS * MOST_WIDTH / 8);
    TG_ARRAY(float, turns, MOST_ROWS * 2 * MOST_PAIRS);
    const uint slot = group.z, nth = group.x / p.packs, member = group.x % p.packs, row = slot * p.rows + nth;
    const uint kv = group.y % p.kv_heads, block = group.y / p.kv_heads, begin = block * p.block, end = positions[row] + 1;
    if (begin >= end) return;
    const ulong head = ulong(row) * p.kv_heads * p.packs * PACK + (kv * p.packs + member) * PACK;
    const Step step = {qg, k, v, q_norm, k_norm, positions, Q_NORM_IS_F32, K_NORM_IS_F32, row, nth, head, PACK, member, p.pairs, p.ratio_high, p.ratio_low, p.eps, p.scale};
    Seen seen = {keys, values, slots, slot, kv, p.kv_heads, WIDTH, begin, min(end, begin + p.block), 0, (threadgroup const ACT*)fresh, v};
    step_prepare(seen, step, keys, values, shared, (threadgroup ACT*)fresh, turns, thread_index, size.x);
    const uint stride = p.blocks * (WIDTH + 2);
    const IntoPartial into = {partial + head * stride + block * (WIDTH + 2), stride, WIDTH};
    attend_packed<true, IntoPartial>(seen, into, shared, tops, COALESCED, PACK, simd, size.x / 32, lane);
}
