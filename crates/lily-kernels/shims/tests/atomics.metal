// Integer atomics in device and threadgroup memory, fences, threadgroup parameters.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;

struct AtomicArgs { uint count; };

// One word a function, all threads: add, sub, and, or, xor, min, max of x[i]; then the same of uint.
kernel void atomic_functions(device const int* x [[buffer(0)]], device atomic_int* s [[buffer(1)]], device atomic_uint* u [[buffer(2)]],
                             constant AtomicArgs& args [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    if (i >= args.count) return;
    const int v = x[i];
    atomic_fetch_add_explicit(s, v, memory_order_relaxed);
    atomic_fetch_sub_explicit(s + 1, v, memory_order_relaxed);
    atomic_fetch_and_explicit(s + 2, v | 0x1f00, memory_order_relaxed);
    atomic_fetch_or_explicit(s + 3, v & 0x0ff0, memory_order_relaxed);
    atomic_fetch_xor_explicit(s + 4, v, memory_order_relaxed);
    atomic_fetch_min_explicit(s + 5, v, memory_order_relaxed);
    atomic_fetch_max_explicit(s + 6, v, memory_order_relaxed);
    atomic_fetch_add_explicit(u, uint(v), memory_order_relaxed);
    atomic_fetch_sub_explicit(u + 1, uint(v), memory_order_relaxed);
    atomic_fetch_and_explicit(u + 2, uint(v) | 0x1f00u, memory_order_relaxed);
    atomic_fetch_or_explicit(u + 3, uint(v) & 0x0ff0u, memory_order_relaxed);
    atomic_fetch_xor_explicit(u + 4, uint(v), memory_order_relaxed);
    atomic_fetch_min_explicit(u + 5, uint(v), memory_order_relaxed);
    atomic_fetch_max_explicit(u + 6, uint(v), memory_order_relaxed);
}
// Each thread takes a ticket and writes itself into the place that it drew; the host sorts nothing: it counts.
// `drawn[ticket]` is 1 for each ticket drawn exactly once. `last` keeps the greatest value exchanged by thread 0.
kernel void tickets(device atomic_uint* next [[buffer(0)]], device atomic_uint* drawn [[buffer(1)]], device atomic_uint* last [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    const uint ticket = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(drawn + ticket, 1, memory_order_relaxed);
    if (i == 0) {
        atomic_store_explicit(last, 41u, memory_order_relaxed);
        const uint before = atomic_exchange_explicit(last, 1u, memory_order_relaxed);
        atomic_store_explicit(last, before + atomic_load_explicit(last, memory_order_relaxed), memory_order_relaxed);
    }
}
// y = y * 3 + 1 once a thread, whatever the order: by a loop of compare-and-exchange.
kernel void exchange_loop(device atomic_uint* y [[buffer(0)]]) {
    uint seen = atomic_load_explicit(y, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(y, &seen, seen * 3u + 1u, memory_order_relaxed, memory_order_relaxed)) {}
}
// Counting sort of keys 0..15 in one threadgroup, as routing does: histogram, exclusive prefix, places.
// `place[i]` is where key i goes; equal keys take places in any order, so the sorted keys are what is compared.
kernel void histogram_sort(device const uint* keys [[buffer(0)]], device uint* counts [[buffer(1)]], device uint* starts [[buffer(2)]],
                           device uint* sorted [[buffer(3)]], constant AtomicArgs& args [[buffer(4)]],
                           uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
    TG_ARRAY(atomic_uint, bins, 16);
    TG_ARRAY(uint, first, 16);
    if (tid < 16) atomic_store_explicit(&bins[tid], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < args.count; i += threads) atomic_fetch_add_explicit(&bins[keys[i]], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 32) {
        const uint mine = tid < 16 ? atomic_load_explicit(&bins[tid], memory_order_relaxed) : 0u;
        const uint before = simd_prefix_exclusive_sum(mine);
        if (tid < 16) {
            counts[tid] = mine;
            starts[tid] = first[tid] = before;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 16) atomic_store_explicit(&bins[tid], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < args.count; i += threads)
        sorted[first[keys[i]] + atomic_fetch_add_explicit(&bins[keys[i]], 1u, memory_order_relaxed)] = keys[i];
}
// The threadgroup that finishes last sums what the others wrote: fence, count, and the last one fences and reads.
kernel void last_group_sums(device const uint* x [[buffer(0)]], device uint* partial [[buffer(1)]], device atomic_uint* finished [[buffer(2)]],
                            device uint* total [[buffer(3)]], uint i [[thread_position_in_grid]], uint group [[threadgroup_position_in_grid]],
                            uint groups [[threadgroups_per_grid]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(uint, ticket, 1);
    const uint sum = simd_sum(x[i]);
    if (tid == 0) {
        partial[group] = sum;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        ticket[0] = atomic_fetch_add_explicit(finished, 1, memory_order_relaxed);
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (ticket[0] != groups - 1) return;
    const uint all = simd_sum(tid < groups ? partial[tid] : 0u);
    if (tid == 0) total[0] = all;
}
// Two threadgroup parameters whose sizes the launch gives: y = x reversed within the group, plus a shared count.
kernel void threadgroup_parameters(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], threadgroup float* values TG_PARAM(0),
                                   threadgroup atomic_uint* seen TG_PARAM(1), uint i [[thread_position_in_grid]],
                                   uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
    if (tid == 0) atomic_store_explicit(seen, 0u, memory_order_relaxed);
    values[tid] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(seen, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = values[threads - 1 - tid] + float(atomic_load_explicit(seen, memory_order_relaxed));
}
