// Text that must not compile, one fault a macro: FAULT_ADDRESS_SPACE and FAULT_BARE_POINTER in the address-space mode,
// FAULT_TYPE, FAULT_BFLOAT_MATH and FAULT_BFLOAT_LANES in both.
#include <metal_stdlib>
#include "portable.h"
using namespace metal;

inline void fill(threadgroup half* tile, uint at) { tile[at] = half(0.0f); }
#ifdef FAULT_BARE_POINTER   // Metal wants an address space on every pointer
inline float first(const half* x) { return float(x[0]); }
inline float first_of(device const half* x) { return first(x); }
#endif
#ifdef FAULT_TYPE
inline device half* wrong(device float* x) { return x; }
#endif

kernel void statics(device half* y [[buffer(0)]], device atomic_uint* count [[buffer(1)]], uint tid [[thread_index_in_threadgroup]]) {
    TG_ARRAY(half, tile, 32);
    fill(tile, tid);
    uint seen = 0;
    atomic_compare_exchange_weak_explicit(count, &seen, 1u, memory_order_relaxed, memory_order_relaxed);
#ifdef FAULT_ADDRESS_SPACE
    fill(y, tid);
#endif
#ifdef FAULT_ATOMIC_SPACE   // what was expected lives in the thread's own memory
    atomic_compare_exchange_weak_explicit(count, (device uint*)y, 1u, memory_order_relaxed, memory_order_relaxed);
#endif
#ifdef FAULT_BFLOAT_MATH    // Metal has no mathematics on bfloat
    y[tid] = half(float(exp(bfloat(float(y[tid])))));
#endif
#ifdef FAULT_BFLOAT_LANES   // nor operations across lanes
    y[tid] = half(float(simd_sum(bfloat(float(y[tid])))));
#endif
}
