// Adjusted logits, and of each slice its best token and its sum of exponentials: a threadgroup a slice and row
// (select/select_slices.rs).
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "request.h"
#include "select.h"
using namespace metal;

/// Rows, and entries of the pools, begin at whole vectors.
FUNCTION_CONSTANT(bool, VECTORS, 0);

struct SelectSlicesParams { uint vocab; uint slices; uint slice_len; };

/// Sums and products of finite numbers stay finite, -inf stays a ban, and what has no meaning becomes one.
inline float finite_score(float v) { return isnan(v) ? no_score() : fmin(v, LARGEST_FLOAT); }

/// The next `n` of four values; the others stay.
inline void load_four(thread float* v, device const float* from, uint n) {
    if (VECTORS) {
        if (n == 0) return;
        const float4 four = *(device const float4*)from;
        v[0] = four.x; v[1] = four.y; v[2] = four.z; v[3] = four.w;
    } else {
        UNROLL
        for (uint j = 0; j < 4; ++j) if (j < n) v[j] = from[j];
    }
}
inline void load_four(thread uint* v, device const uint* from, uint n) {
    if (VECTORS) {
        if (n == 0) return;
        const uint4 four = *(device const uint4*)from;
        v[0] = four.x; v[1] = four.y; v[2] = four.z; v[3] = four.w;
    } else {
        UNROLL
        for (uint j = 0; j < 4; ++j) if (j < n) v[j] = from[j];
    }
}

kernel void select_slices(device const float* logits [[buffer(0)]],
                          device const uint* requests [[buffer(1)]],
                          device const uint* counts [[buffer(2)]],
                          device const float* bias [[buffer(3)]],
                          device const uint* mask [[buffer(4)]],
                          device float* scores [[buffer(5)]],
                          device uint* maxima [[buffer(6)]],
                          device float* sums [[buffer(7)]],
                          constant SelectSlicesParams& p [[buffer(8)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint threads [[threads_per_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]]) {
    // At most 256 threads.
    TG_ARRAY(uint, keys, 8);
    TG_ARRAY(uint, ids, 8);
    TG_ARRAY(uint, faults, 8);
    TG_ARRAY(float, parts, 8);
    const uint slice = group.x, row = group.y;
    device const uint* q = requests + row * REQUEST_WORDS;
    const bool greedy = request_greedy(q);
    const float temperature = as_type<float>(q[REQUEST_TEMPERATURE]);
    const uint flags = q[REQUEST_FLAGS];
    // Four tokens a thread. Lanes behind the slice's end have none.
    const uint base = slice * p.slice_len, end = min(base + p.slice_len, p.vocab);
    const uint id = base + 4 * thread_index, vocabulary = min(q[REQUEST_VOCABULARY], end);
    const ulong at = ulong(row) * p.vocab + id;
    const ulong pooled = ulong(q[REQUEST_ENTRY]) * p.vocab + id;

    const uint n = id < vocabulary ? min(vocabulary - id, 4u) : 0u;
    float v[4] = {no_score(), no_score(), no_score(), no_score()};
    load_four(v, logits + at, n);
    uint fault = 0;
    UNROLL
    for (uint j = 0; j < 4; ++j) {
        if (j >= n) v[j] = no_score();
        const uint bits = as_type<uint>(v[j]);
        fault |= uint(bits == 0x7f800000u || (bits & 0x7fffffffu) > 0x7f800000u);
    }
    if (flags & HAS_BIAS) {
        float add[4] = {};
        load_four(add, bias + pooled, n);
        UNROLL
        for (uint j = 0; j < 4; ++j) if (j < n) v[j] = finite_score(v[j] + add[j]);
    }
    if (flags & HAS_COUNTS) {
        const float repetition = as_type<float>(q[REQUEST_REPETITION]), reciprocal = as_type<float>(q[REQUEST_RECIPROCAL]);
        const float presence = as_type<float>(q[REQUEST_PRESENCE]), frequency = as_type<float>(q[REQUEST_FREQUENCY]);
        uint seen[4] = {};
        load_four(seen, counts + pooled, n);
        UNROLL
        for (uint j = 0; j < 4; ++j) {
            const uint count = j < n ? seen[j] & ~SEEN_IN_PROMPT : 0u;
            // Products by fma with 0: on its own, a product could become one rounding with the difference behind it.
            if (j < n && seen[j]) v[j] = finite_score(fma(v[j], v[j] > 0.0f ? reciprocal : repetition, 0.0f));
            if (count) v[j] = finite_score((v[j] - presence) - fma(frequency, float(count), 0.0f));
        }
    }
    // Four tokens lie in one word.
    if (flags & HAS_MASK && n) {
        const uint allowed = mask[ulong(q[REQUEST_ENTRY]) * ((p.vocab + 31) / 32) + id / 32] >> id % 32;
        for (uint j = 0; j < 4; ++j) if (!(allowed >> j & 1u)) v[j] = no_score();
    }
    if (!greedy && id < end) {
        if (VECTORS) *(device float4*)(scores + at) = float4(v[0], v[1], v[2], v[3]);
        else for (uint j = 0; j < 4; ++j) if (id + j < end) scores[at + j] = v[j];
    }

    uint key = score_key(finite_score(v[0])), best = id;
    for (uint j = 1; j < 4; ++j) {
        const uint next = score_key(finite_score(v[j]));
        if (next > key) { key = next; best = id + j; }
    }
    const uint largest_key = simd_max(key);
    const uint largest_id = simd_min(key == largest_key ? best : 0xffffffffu);
    fault = simd_max(fault);
    if (lane == 0) { keys[simd] = largest_key; ids[simd] = largest_id; faults[simd] = fault; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Ids rise with the simdgroups.
    key = keys[0], best = ids[0], fault = faults[0];
    for (uint i = 1; i < threads / 32; ++i) {
        if (keys[i] > key) { key = keys[i]; best = ids[i]; }
        fault |= faults[i];
    }
    float sum = 0.0f;
    if (!greedy && key > BANNED) {
        const float largest = key_score(key);
        for (uint j = 0; j < 4; ++j) sum += score_weight(v[j], largest, temperature);
    }
    sum = simd_sum(sum);
    if (lane == 0) parts[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) {
        sum = parts[0];
        for (uint i = 1; i < threads / 32; ++i) sum += parts[i];
        const ulong out = ulong(row) * p.slices + slice;
        maxima[2 * out] = key;
        maxima[2 * out + 1] = best;
        sums[out] = fault ? -1.0f : sum;
    }
}
