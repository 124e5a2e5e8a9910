// Everything across lanes. Lanes that `keep` masks out return before the operation; the last simdgroup may be partial.
#include <metal_stdlib>
#include "portable.h"
#include "ops.h"
using namespace metal;

struct LaneArgs { uint op; uint keep; };

#define CASE(name, expression) case OP_##name: return expression;
template <typename T> inline T lane_op(uint op, T v, T w, uint lane) {
    switch (op) { LANE_OPS(CASE) SHUFFLE_OPS(CASE) }
    return v;
}
template <typename T> inline T bit_op(uint op, T v, T w, uint lane) {
    switch (op) { BIT_OPS(CASE) }
    return lane_op<T>(op, v, w, lane);
}
#undef CASE

kernel void lanes_i32(device const int* x [[buffer(0)]], device const int* fill [[buffer(1)]], device int* y [[buffer(2)]],
                      constant LaneArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    y[i] = bit_op<int>(args.op, x[i], fill[i], lane);
}
kernel void lanes_u16(device const ushort* x [[buffer(0)]], device const ushort* fill [[buffer(1)]], device ushort* y [[buffer(2)]],
                      constant LaneArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    y[i] = bit_op<ushort>(args.op, x[i], fill[i], lane);
}
kernel void lanes_f32(device const float* x [[buffer(0)]], device const float* fill [[buffer(1)]], device float* y [[buffer(2)]],
                      constant LaneArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    y[i] = lane_op<float>(args.op, x[i], fill[i], lane);
}
kernel void lanes_f16(device const half* x [[buffer(0)]], device const half* fill [[buffer(1)]], device half* y [[buffer(2)]],
                      constant LaneArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    y[i] = lane_op<half>(args.op, x[i], fill[i], lane);
}
kernel void lanes_f32x4(device const float4* x [[buffer(0)]], device const float4* fill [[buffer(1)]], device float4* y [[buffer(2)]],
                        constant LaneArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    y[i] = lane_op<float4>(args.op, x[i], fill[i], lane);
}
// Eight words a thread: ballot, active mask, all, any, is_first, quad_all, quad_any, all of true.
kernel void votes(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]], constant LaneArgs& args [[buffer(2)]],
                  uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (!(args.keep >> lane & 1u)) return;
    const bool yes = x[i] != 0;
    y[i * 8] = uint(ulong(simd_ballot(yes)));
    y[i * 8 + 1] = uint(simd_vote::vote_t(simd_active_threads_mask()));
    y[i * 8 + 2] = uint(simd_all(yes));
    y[i * 8 + 3] = uint(simd_any(yes));
    y[i * 8 + 4] = uint(simd_is_first());
    y[i * 8 + 5] = uint(quad_all(yes));
    y[i * 8 + 6] = uint(quad_any(yes));
    y[i * 8 + 7] = uint(simd_all(true));
}
// What each lane deposits in threadgroup memory is read by its neighbour after a simdgroup barrier.
kernel void simdgroup_handoff(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    TG_ARRAY(uint, slots, 64);
    slots[tid] = tid * 3;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = slots[tid - lane + (lane + 1) % 32];
}
// Every thread attribute, fifteen words a thread.
kernel void attributes(device uint* y [[buffer(0)]], uint3 at [[thread_position_in_grid]], uint3 all [[threads_per_grid]],
                       uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                       uint3 in_group [[thread_position_in_threadgroup]], uint3 size [[threads_per_threadgroup]],
                       uint index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]],
                       uint width [[threads_per_simdgroup]], uint quad_lane [[thread_index_in_quadgroup]],
                       uint quad [[quadgroup_index_in_threadgroup]], uint2 flat [[thread_position_in_grid]]) {
    device uint* out = y + (at.x + all.x * (at.y + all.y * at.z)) * 15;
    out[0] = at.x; out[1] = at.y; out[2] = at.z;
    out[3] = group.x + groups.x * (group.y + groups.y * group.z);
    out[4] = in_group.x + size.x * (in_group.y + size.y * in_group.z);
    out[5] = index; out[6] = lane; out[7] = simd; out[8] = simds; out[9] = width; out[10] = quad_lane; out[11] = quad;
    out[12] = flat.x + flat.y * 1000; out[13] = size.x * 100 + size.y * 10 + size.z; out[14] = groups.x * 100 + groups.y * 10 + groups.z;
}
