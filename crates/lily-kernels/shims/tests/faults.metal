// Kernels that are wrong on purpose, one fault each: every check must catch its own (scripts/test-shims names which).
#include <metal_stdlib>
#include "portable.h"
using namespace metal;

// ---- the emulator itself stops ---------------------------------------------------------------
kernel void fault_divergent_barrier(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid >= 32) threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = tid;
}
kernel void fault_divergent_sum(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid % 32 < 8) y[tid] = simd_sum(tid);
    else y[tid] = simd_sum(tid + 1);
}
// Half of the lanes vote, the others wait at the barrier: a vote of whom?
kernel void fault_divergent_vote(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid % 2 == 0) y[tid] = uint(simd_any(tid == 2));
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
kernel void fault_divergent_prefix(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    for (uint i = 0; i <= tid % 2; ++i) y[tid] = simd_prefix_exclusive_sum(tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
kernel void fault_divergent_quad(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid % 8 < 4) y[tid] = quad_sum(tid);
    else y[tid] = quad_max(tid);
}
kernel void fault_shuffle_range(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    y[tid] = simd_shuffle(tid, ushort(lane + 1));
}
kernel void fault_quad_range(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    y[tid] = quad_shuffle_xor(tid, 4);
}
kernel void fault_atomic_order(device atomic_uint* y [[buffer(0)]]) { atomic_fetch_add_explicit(y, 1, memory_order_seq_cst); }
kernel void fault_bit_range(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) { y[tid] = extract_bits(y[tid], tid, 8u); }
kernel void fault_threadgroup_size(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, much, 8200);
    much[tid] = tid;
    y[tid] = much[tid];
}
kernel void fault_parameter_unsized(device uint* y [[buffer(0)]], threadgroup uint* memory TG_PARAM(3), uint tid [[thread_index_in_threadgroup]]) {
    memory[tid] = tid;
    y[tid] = memory[tid];
}

// ---- the numbers are wrong: y[tid] should be tid -------------------------------------------------------
kernel void fault_shuffle_from_returned(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    y[tid] = float(tid);
    if (lane == 31) return;
    y[tid] = simd_shuffle_down(float(tid), 1) - 1.0f;
}
kernel void fault_unwritten(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(float, never, 64);
    y[tid] = float(tid) + never[tid] * 0.0f;
}
// cos² + sin² of large angles, by a sine that is only good near zero against a true cosine.
kernel void fault_fast_angle(device float* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    const float angle = 2.6e5f - float(tid) * 0.7f;
    const float s = fast::sin(angle), c = precise::cos(angle);
    y[tid] = float(tid) + (s * s + c * c - 1.0f) * 1.0e3f;
}
// A weak exchange that fails must be tried again.
kernel void fault_weak_exchange(device float* y [[buffer(0)]], device atomic_uint* count [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    uint seen = atomic_load_explicit(count, memory_order_relaxed);
    atomic_compare_exchange_weak_explicit(count, &seen, seen + 1, memory_order_relaxed, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_device);
    const uint threads = atomic_load_explicit(count, memory_order_relaxed);
    y[tid] = float(tid) + float(threads) - 64.0f;
}

// ---- ASan and UBSan ------------------------------------------------------------------------
kernel void fault_device_bounds(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) { y[tid + 1] = tid; }
kernel void fault_array_bounds(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, values, 64);
    values[tid + 1] = tid;
    y[tid] = tid;
}
kernel void fault_parameter_bounds(device uint* y [[buffer(0)]], threadgroup uint* memory TG_PARAM(0), uint tid [[thread_index_in_threadgroup]]) {
    memory[tid + 1] = tid;
    y[tid] = tid;
}
kernel void fault_atomic_bounds(device atomic_uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    atomic_fetch_add_explicit(y + tid + 1, 1, memory_order_relaxed);
}
kernel void fault_alignment(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    device uint4* wide = (device uint4*)(y + 1);
    if (tid == 0) wide[0] = uint4(tid);
}
kernel void fault_shift(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) { y[tid] = 1u << tid; }

// ---- TSan ---------------------------------------------------------------------------------
kernel void fault_missing_barrier(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, values, 64);
    values[tid] = tid;
    y[tid] = values[63 - tid];
}
kernel void fault_missing_second_barrier(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, values, 64);
    uint sum = 0;
    for (uint round = 0; round < 3; ++round) {
        values[tid] = tid + round;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum += values[63 - tid];
    }
    y[tid] = sum;
}
kernel void fault_wrong_flags(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, values, 64);
    values[tid] = tid;
    threadgroup_barrier(mem_flags::mem_none);
    y[tid] = values[63 - tid];
}
kernel void fault_groups_race(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
    y[tid] = group;
}
kernel void fault_plain_count(device uint* y [[buffer(0)]]) { y[0] += 1; }
// Zeroed without a barrier before the others add.
kernel void fault_atomic_barrier(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, plain, 64);
    threadgroup atomic_uint* bins = (threadgroup atomic_uint*)plain;
    plain[tid] = 0;
    atomic_fetch_add_explicit(&bins[tid / 2], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = plain[tid];
}
// Published by a relaxed atomic, without a fence.
kernel void fault_atomic_publish(device uint* data [[buffer(0)]], device atomic_uint* flag [[buffer(1)]], uint tid [[thread_index_in_threadgroup]],
                                 uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]]) {
    if (tid != 0) return;
    data[group] = group;
    if (atomic_fetch_add_explicit(flag, 1, memory_order_relaxed) == groups - 1) data[0] += data[1];
}
// A simd operation orders no memory.
kernel void fault_simd_is_no_fence(device uint* y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, values, 64);
    values[tid] = simd_sum(tid);
    y[tid] = values[tid ^ 1] + simd_max(tid) + values[tid ^ 2];
}
