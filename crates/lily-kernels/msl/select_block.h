// Sums and searches by one threadgroup of 512 threads over at most 1024 values, two neighbours a thread.
#pragma once
using namespace metal;
constant constexpr uint BLOCK_SIMDS = 16;
constant constexpr uint NOWHERE = 0xffffffffu;
/// A thread's place, and memory for the exchange between simdgroups: 16 words each.
struct Block { uint thread_index; uint lane; uint simd; };

inline uint block_min(uint v, thread const Block& b, threadgroup uint* words) {
    v = simd_min(v);
    if (b.lane == 0) words[b.simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    v = simd_min(b.lane < BLOCK_SIMDS ? words[b.lane] : 0xffffffffu);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}
inline uint block_max(uint v, thread const Block& b, threadgroup uint* words) { return ~block_min(~v, b, words); }
/// The sums up to and with the thread's two values.
inline float2 block_sums(float2 v, thread const Block& b, threadgroup float* parts) {
    const float pair = v.x + v.y, before = simd_prefix_exclusive_sum(pair);
    if (b.lane == 31) parts[b.simd] = before + pair;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float bases = simd_prefix_exclusive_sum(b.lane < BLOCK_SIMDS ? parts[b.lane] : 0.0f);
    const float first = (simd_shuffle(bases, ushort(b.simd)) + before) + v.x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return float2(first, first + v.y);
}
/// The lower index of the thread's two values at which something holds, over all threads.
inline uint block_first(bool x, bool y, thread const Block& b, threadgroup uint* words) {
    return block_min(x ? 2 * b.thread_index : y ? 2 * b.thread_index + 1 : NOWHERE, b, words);
}
/// The last of the sums up to values above 0: their total, which those sums reach.
inline float block_total(float2 v, float2 sums, thread const Block& b, threadgroup uint* words) {
    const float most = fmax(v.x > 0.0f ? sums.x : 0.0f, v.y > 0.0f ? sums.y : 0.0f);
    return as_type<float>(block_max(as_type<uint>(most), b, words));
}
