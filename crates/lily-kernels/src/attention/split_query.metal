// Queries out of queries and gates (attention/split_query.rs): a thread for 16 bytes, or for an element of heads that are no
// multiple of that.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;
#include "activation.h"

FUNCTION_CONSTANT(bool, WHOLE, 0);

struct SplitQueryParams { uint width; uint elements; };

kernel void split_query(device const ACT* qg [[buffer(0)]],
                        device ACT* q [[buffer(1)]],
                        constant SplitQueryParams& p [[buffer(2)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
    const uint unit = group * 256 + thread_index;
    if (unit >= (WHOLE ? p.elements * sizeof(ACT) / 16 : p.elements)) return;
    // Of a head, in elements or in 16 bytes.
    const uint width = WHOLE ? p.width * uint(sizeof(ACT)) / 16 : p.width;
    const ulong from = ulong(unit / width) * 2 * width + unit % width;
    if (WHOLE) ((device uint4*)q)[unit] = ((device const uint4*)qg)[from];
    else q[unit] = qg[from];
}
