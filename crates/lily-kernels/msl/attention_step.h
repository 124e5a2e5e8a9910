// What a fused decode step makes before it attends: its queries, and the new keys that it sees; and the cache write.
#pragma once
#include "attention_rows.h"

/// Where a threadgroup stands.
struct Step {
    device const ACT* qg;
    device const ACT* k;
    device const ACT* v;
    device const bfloat* q_norm;
    device const bfloat* k_norm;
    device const uint* positions;
    bool q_norm_is_f32;
    bool k_norm_is_f32;
    /// Row of the launch, and of its sequence.
    uint row;
    uint nth;
    /// The first query head's number among all rows' heads.
    ulong head;
    uint pack;
    /// Which of the threadgroups with this row and KV head.
    uint member;
    uint pairs;
    float ratio_high;
    float ratio_low;
    float eps;
    float scale;
};

/// Norms and turns the queries into `shared` and the new keys into `fresh_keys`, and writes the row's own key and value if `seen` ends
/// with it. `seen` comes with the keys from `begin` to before `end`, of which those at the sequence's first new row and behind
/// are taken from k and v; its last fields are set here. All threads call this, and it ends with a barrier.
inline void step_prepare(thread Seen& seen, thread const Step& step, device ACT* keys, device ACT* values, threadgroup float* shared, threadgroup ACT* fresh_keys,
                         threadgroup float* turns, uint thread_index, uint threads) {
    const uint first_row = step.row - step.nth, base = step.positions[first_row], position = step.positions[step.row];
    seen.fresh = max(base, seen.begin);
    // New rows that are seen here: from `skipped` on.
    const uint skipped = min(seen.fresh - base, step.nth), count = seen.end > seen.fresh ? seen.end - seen.fresh : 0;
    seen.fresh_keys = fresh_keys;
    seen.fresh_values = step.v + (ulong(first_row + skipped) * seen.heads + seen.head) * seen.width;
    for (uint i = thread_index; i < (step.nth - skipped + 1) * step.pairs; i += threads) {
        const uint n = i / step.pairs;
        rope_turn(turns + n * 2 * MOST_PAIRS, step.positions[first_row + skipped + n], step.ratio_high, step.ratio_low, i % step.pairs);
    }
    for (uint i = step.pack * MOST_WIDTH + thread_index; i < MOST_PACKED * MOST_WIDTH; i += threads) shared[i] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint lane = thread_index % 32;
    for (uint unit = thread_index / 32; unit < step.pack + count; unit += threads / 32) {
        if (unit < step.pack) {
            device const ACT* x = step.qg + 2 * (step.head + unit) * seen.width;
            const float scale = head_scale(x, seen.width, step.eps, lane);
            for (uint i = lane; i < MOST_WIDTH; i += 32) {
                float value = 0.0f;
                if (i < seen.width)
                    value = prepared(x, step.q_norm, step.q_norm_is_f32, scale, turns + (step.nth - skipped) * 2 * MOST_PAIRS, step.pairs, i) * step.scale;
                shared[unit * MOST_WIDTH + i] = value;
            }
        } else {
            const uint n = unit - step.pack;
            device const ACT* x = step.k + (ulong(first_row + skipped + n) * seen.heads + seen.head) * seen.width;
            const float scale = head_scale(x, seen.width, step.eps, lane);
            const bool own = step.member == 0 && seen.fresh + n == position;
            const ulong to = cache_at(seen.slots, seen.slot, seen.fresh + n, seen.head, seen.heads, seen.width);
            for (uint i = lane; i < seen.width; i += 32) {
                const ACT value = ACT(prepared(x, step.k_norm, step.k_norm_is_f32, scale, turns + n * 2 * MOST_PAIRS, step.pairs, i));
                fresh_keys[n * MOST_WIDTH + i] = value;
                if (own) {
                    keys[to + i] = value;
                    values[to + i] = seen.fresh_values[ulong(n) * seen.heads * seen.width + i];
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
