// A row of scores in slices: sums of what its tokens count for, and the token at which such a sum reaches a threshold. For a
// threadgroup of 512 threads.
//
// The order of rank is by falling key, then by rising id: by falling `rank_of`. What top_k and top_p keep is a leading part of
// it and therefore described by the rank of its last token, the cut.
#pragma once
#include "select.h"
#include "select_block.h"
using namespace metal;

inline ulong rank_of(uint key, uint id) { return ulong(key) << 32 | ulong(~id); }
inline uint rank_key(ulong rank) { return uint(rank >> 32); }

/// What a token counts for in a sum: 1, its weight, or 1 if it has one key.
constant constexpr uint BY_COUNT = 0;
constant constexpr uint BY_WEIGHT = 1;
constant constexpr uint BY_KEY = 2;
struct Measure { uint kind; uint key; float log_min_p; ulong cut; };

/// `vectors`: it begins at a whole vector.
struct Row {
    device const float* scores;
    bool vectors;
    uint vocab, slices, slice_len;
    float largest, temperature;
};
inline float key_weight(thread const Row& row, uint key) { return score_weight(key_score(key), row.largest, row.temperature); }

inline float measured(thread const Row& row, thread const Measure& m, float score, uint id) {
    const uint key = score_key(score);
    if (rank_of(key, id) < m.cut) return 0.0f;
    if (m.kind != BY_WEIGHT) return m.kind == BY_COUNT || key == m.key ? 1.0f : 0.0f;
    const float exponent = score_exponent(score, row.largest, row.temperature);
    return exponent >= m.log_min_p ? precise::exp(exponent) : 0.0f;
}
/// Four scores of a row from `id` on; -inf behind the row's end.
inline float4 four_scores(thread const Row& row, uint id) {
    if (row.vectors) return *(device const float4*)(row.scores + id);
    const uint n = row.vocab - id;
    device const float* s = row.scores + id;
    return float4(s[0], n > 1 ? s[1] : no_score(), n > 2 ? s[2] : no_score(), n > 3 ? s[3] : no_score());
}
inline uint slice_end(thread const Row& row, uint slice) { return min((slice + 1) * row.slice_len, row.vocab); }

/// The sum of each slice's measures. A simdgroup a slice.
inline void sum_slices(thread const Row& row, thread const Measure& m, thread const Block& b,
                       threadgroup const uint* slice_keys, threadgroup float* masses) {
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        const uint key = slice_keys[s];
        const bool any = key > BANNED && key >= (m.kind == BY_KEY ? m.key : rank_key(m.cut))
            && (m.kind != BY_WEIGHT || score_exponent(key_score(key), row.largest, row.temperature) >= m.log_min_p);
        float sum = 0.0f;
        if (any) {
            const uint end = slice_end(row, s);
            for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
                const float4 v = four_scores(row, id);
                sum += measured(row, m, v.x, id) + measured(row, m, v.y, id + 1)
                    + measured(row, m, v.z, id + 2) + measured(row, m, v.w, id + 3);
            }
        }
        sum = simd_sum(sum);
        if (b.lane == 0) masses[s] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// The first value above 0 with which the sum exceeds the threshold, or the last one that changes the sum if none does; NOWHERE
/// if no value is above 0. Leaves what is left of the threshold before that value.
inline uint place_of(thread float& threshold, float2 v, thread const Block& b, threadgroup uint* words, threadgroup float* parts) {
    const float2 sums = block_sums(v, b, parts);
    const float total = block_total(v, sums, b, words);
    // Rounding can leave the threshold at the total; the token meant is then one of weight, not the last one of all.
    if (total > 0.0f) threshold = fmin(threshold, as_type<float>(as_type<uint>(total) - 1));
    const uint index = block_first(v.x > 0.0f && sums.x > threshold, v.y > 0.0f && sums.y > threshold, b, words);
    if (index == NOWHERE) return NOWHERE;
    if (index / 2 == b.thread_index) parts[0] = fmax(threshold - (index % 2 ? sums.x : sums.x - v.x), 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threshold = parts[0];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return index;
}

/// A thread's two slices.
inline float2 two_masses(thread const Row& row, thread const Block& b, threadgroup const float* masses) {
    const uint first = 2 * b.thread_index;
    return float2(first < row.slices ? masses[first] : 0.0f, first + 1 < row.slices ? masses[first + 1] : 0.0f);
}

/// The token at which the sum of measures by rising id exceeds the threshold; `masses` holds the slices' sums.
inline uint pick(thread const Row& row, thread const Measure& m, float threshold, thread const Block& b,
                 threadgroup const float* masses, threadgroup uint* words, threadgroup float* parts) {
    const uint slice = place_of(threshold, two_masses(row, b, masses), b, words, parts);
    if (slice == NOWHERE) return NOWHERE;
    const uint id = slice * row.slice_len + 2 * b.thread_index, end = slice_end(row, slice);
    const float2 v = float2(id < end ? measured(row, m, row.scores[id], id) : 0.0f,
                            id + 1 < end ? measured(row, m, row.scores[id + 1], id + 1) : 0.0f);
    const uint token = place_of(threshold, v, b, words, parts);
    return token == NOWHERE ? NOWHERE : slice * row.slice_len + token;
}
