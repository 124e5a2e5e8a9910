// Attention of many rows over the cache (attention/attend.rs): a threadgroup for 64 rows of a KV head, the query heads that share it folded
// into rows. The last rows, which see most, come first.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#include "portable.h"
using namespace metal;
#include "flash_body.h"

FUNCTION_CONSTANT(uint, WIDTH, 0);
FUNCTION_CONSTANT(uint, GROUP, 1);

struct AttendFlashParams { uint rows; uint kv_heads; float scale; };

kernel void attend_flash(device const ACT* q [[buffer(0)]],
                         device const ACT* qg [[buffer(1)]],
                         device const uint* positions [[buffer(2)]],
                         device FINE* out [[buffer(3)]],
                         device const ACT* keys [[buffer(4)]],
                         device const ACT* values [[buffer(5)]],
                         device const uint* slots [[buffer(6)]],
                         constant AttendFlashParams& p [[buffer(7)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint3 grid [[threadgroups_per_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(FlashUnit, memory, FLASH_MEMORY);
    const Flash at = {q, qg, positions, out, keys, values, slots, group.z, group.y, p.kv_heads, GROUP, WIDTH, p.rows, (grid.x - 1 - group.x) * FLASH_ROWS, p.scale};
    flash(at, memory, thread_index, simd, lane);
}
