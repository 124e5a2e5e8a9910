// The attention of a decode step in one launch (attention/attend_step.rs): a threadgroup for `PACK` query heads of a row.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "attention_step.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);
FUNCTION_CONSTANT(uint, PACK, 1);
FUNCTION_CONSTANT(bool, COALESCED, 2);
FUNCTION_CONSTANT(bool, Q_NORM_IS_F32, 3);
FUNCTION_CONSTANT(bool, K_NORM_IS_F32, 4);

struct AttendStepParams { uint rows; uint kv_heads; uint packs; uint pairs; float ratio_high; float ratio_low; float eps; float scale; };

kernel void attend_step(device const ACT* qg [[buffer(0)]],
                        device const ACT* k [[buffer(1)]],
                        device const ACT* v [[buffer(2)]],
                        device const bfloat* q_norm [[buffer(3)]],
                        device const bfloat* k_norm [[buffer(4)]],
                        device const uint* positions [[buffer(5)]],
                        device FINE* out [[buffer(6)]],
                        device ACT* keys [[buffer(7)]],
                        device ACT* values [[buffer(8)]],
                        device const uint* slots [[buffer(9)]],
                        constant AttendStepParams& p [[buffer(10)]],
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
    const ulong head = ulong(row) * p.kv_heads * p.packs * PACK + (group.y * p.packs + member) * PACK;
    const Step step = {qg, k, v, q_norm, k_norm, positions, Q_NORM_IS_F32, K_NORM_IS_F32, row, nth, head, PACK, member, p.pairs, p.ratio_high, p.ratio_low, p.eps, p.scale};
    Seen seen = {keys, values, slots, slot, group.y, p.kv_heads, WIDTH, 0, positions[row] + 1, 0, (threadgroup const ACT*)fresh, v};
    step_prepare(seen, step, keys, values, shared, (threadgroup ACT*)fresh, turns, thread_index, size.x);
    const IntoOut into = {out + head * WIDTH, qg + 2 * head * WIDTH, WIDTH};
    attend_packed<true, IntoOut>(seen, into, shared, tops, COALESCED, PACK, simd, size.x / 32, lane);
}
