// Filters and the draw: a threadgroup of 512 threads a row (select/select_token.rs).
//
// A slice whose largest score is below a bound holds nothing above it. Searches begin with a bound that follows from the largest
// scores of the slices, and mostly read only the few slices that reach it.
#define WHOLE_SIMDGROUPS
#include <metal_stdlib>
#include "portable.h"
#include "request.h"
#include "select_row.h"
#include "philox.h"
#include "slots.h"
using namespace metal;

/// Rows of scores begin at whole vectors.
FUNCTION_CONSTANT(bool, VECTORS, 0);

struct SelectTokenParams { uint vocab; uint slices; uint slice_len; };

constant constexpr uint THREADS = 512;
constant constexpr uint LIST = 1024;
constant constexpr uint NONE_LEFT = 0xffffffffu;
constant constexpr uint NOT_FINITE = 0xfffffffeu;
/// Below this exponent a weight is 0 as a float.
constant constexpr float NO_WEIGHT = -104.0f;

/// Lists the kept tokens with keys in [low, high), in any order, and returns their number; more than LIST if there are more.
inline uint collect(thread const Row& row, ulong cut, uint low, uint high, thread const Block& b,
                    threadgroup const uint* slice_keys, threadgroup ulong* list, threadgroup atomic_uint* listed) {
    if (b.thread_index == 0) atomic_store_explicit(listed, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const ulong least = max(cut, ulong(low) << 32), most = ulong(high) << 32;
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        if (slice_keys[s] < low) continue;
        if (atomic_load_explicit(listed, memory_order_relaxed) > LIST) break;
        const uint end = slice_end(row, s);
        for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
            const float4 four = four_scores(row, id);
            for (uint j = 0; j < 4; ++j) {
                const float score = j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w;
                const ulong rank = rank_of(score_key(score), id + j);
                if (rank < least || rank >= most) continue;
                const uint at = atomic_fetch_add_explicit(listed, 1u, memory_order_relaxed);
                if (at < LIST) list[at] = rank;
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = atomic_load_explicit(listed, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return n;
}

/// Sorts a list: each of its ranks, two a thread, counts those before it.
inline void sort_list(uint n, thread const Block& b, threadgroup const ulong* list, threadgroup ulong* sorted) {
    const uint i = b.thread_index;
    const ulong first = i < n ? list[i] : 0, second = i + THREADS < n ? list[i + THREADS] : 0;
    uint before_first = 0, before_second = 0;
    for (uint j = 0; j < n; ++j) {
        const ulong other = list[j];
        before_first += uint(other > first);
        before_second += uint(other > second);
    }
    if (i < n) sorted[before_first] = first;
    if (i + THREADS < n) sorted[before_second] = second;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// What a thread's two tokens of a sorted list count for: those of the first `n` with a key above `unsure`.
inline float2 two_ranks(thread const Row& row, bool counting, uint n, uint unsure, thread const Block& b, threadgroup const ulong* sorted) {
    const uint first = 2 * b.thread_index, x = first < n ? rank_key(sorted[first]) : 0u, y = first + 1 < n ? rank_key(sorted[first + 1]) : 0u;
    return float2(x > unsure ? counting ? 1.0f : key_weight(row, x) : 0.0f, y > unsure ? counting ? 1.0f : key_weight(row, y) : 0.0f);
}

/// Where the cut lies: at a key in [low, high), with so much of the measure at higher keys. `reached` is false if the measure
/// of all tokens from `low` on stays below the target.
struct Search { uint low; uint high; float above; bool reached; };

/// An eighth of the interval: the one in which the measure reaches the target. The first rounds divide the scores, which are
/// spread evenly enough; if that does not end the search, the keys are divided, which does.
inline void narrow(thread const Row& row, thread const Measure& m, thread Search& in, float target, uint round, thread const Block& b,
                     threadgroup const uint* slice_keys, threadgroup float* parts) {
    const uint width = in.high - in.low;
    const float least = key_score(in.low), most = key_score(in.high - 1);
    uint border[8];
    border[0] = in.low;
    UNROLL
    for (uint j = 1; j < 8; ++j) {
        const float part = float(j) * 0.125f;
        const uint key = round < 6 ? score_key(fma(most, part, least * (1.0f - part))) : in.low + (width >> 3) * j + ((width & 7) * j >> 3);
        border[j] = min(max(key, border[j - 1]), in.high - 1);
    }
    float sums[8] = {};
    for (uint s = b.simd; s < row.slices; s += BLOCK_SIMDS) {
        if (slice_keys[s] < in.low) continue;
        const uint end = slice_end(row, s);
        for (uint id = s * row.slice_len + 4 * b.lane; id < end; id += 128) {
            const float4 four = four_scores(row, id);
            for (uint i = 0; i < 4; ++i) {
                const float score = i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
                const uint key = score_key(score);
                if (key < in.low || key >= in.high) continue;
                const float value = measured(row, m, score, id + i);
                UNROLL
                for (uint j = 0; j < 8; ++j) sums[j] += key >= border[j] ? value : 0.0f;
            }
        }
    }
    UNROLL
    for (uint j = 0; j < 8; ++j) {
        const float sum = simd_sum(sums[j]);
        if (b.lane == 0) parts[8 * b.simd + j] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float above = in.above;
    in.reached = false;
    UNROLL
    for (uint i = 0; i < 8; ++i) {
        const uint j = 7 - i;
        const float sum = above + simd_sum(b.lane < BLOCK_SIMDS ? parts[8 * b.lane + j] : 0.0f);
        if (in.reached) continue;
        in.reached = sum >= target;
        if (in.reached || j == 0) in.low = border[j];
        else { in.high = border[j]; in.above = sum; }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// The lowest key that matters: of scores with a weight, and with the share of the largest that min_p asks for. Some steps lower,
/// for what rounding does to the bound.
inline uint floor_key(thread const Row& row, float log_min_p) {
    const float exponent = fmax(NO_WEIGHT, fma(log_min_p, 1.0001f, -0.01f));
    const float score = fma(row.temperature, exponent, row.largest);
    return score >= -LARGEST_FLOAT ? max(score_key(score) - 1, BANNED + 1) : BANNED + 1;
}

/// The next step's inputs, by one thread of the row.
inline void finish(uint row, uint result, device const uint* positions, device const uint* tokens, device uint* next_slots,
                   device uint* next_tokens, device uint* next_positions, device uint* chosen, bool ends) {
    const bool taken = result < NOT_FINITE;
    const uint token = tokens[row], position = positions[row];
    chosen[row] = result;
    next_tokens[row] = taken ? result : token;
    next_positions[row] = position + uint(taken);
    next_slots[row * 4 + 3] = uint(!taken || ends);
}

kernel void select_token(device const uint* maxima [[buffer(0)]],
                         device const float* sums [[buffer(1)]],
                         device const float* scores [[buffer(2)]],
                         device const uint* positions [[buffer(3)]],
                         device const uint* tokens [[buffer(4)]],
                         device const uint* slots_now [[buffer(5)]],
                         device uint* requests [[buffer(6)]],
                         device uint* counts [[buffer(7)]],
                         device uint* next_slots [[buffer(8)]],
                         device uint* next_tokens [[buffer(9)]],
                         device uint* next_positions [[buffer(10)]],
                         device uint* chosen [[buffer(11)]],
                         constant SelectTokenParams& p [[buffer(12)]],
                         uint index [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
    TG_ARRAY(uint, slice_keys, 1024);
    TG_ARRAY(float, masses, 1024);
    TG_ARRAY(ulong, list, LIST);
    TG_ARRAY(ulong, sorted, LIST);
    TG_ARRAY(float, parts, 8 * BLOCK_SIMDS);
    TG_ARRAY(uint, words, BLOCK_SIMDS);
    TG_ARRAY(atomic_uint, listed, 1);
    const Block b = {thread_index, lane, simd};
    device uint* q = requests + index * REQUEST_WORDS;
    if (slot_done(slots_now, index)) {
        if (thread_index == 0) finish(index, NONE_LEFT, positions, tokens, next_slots, next_tokens, next_positions, chosen, true);
        return;
    }

    // The best token of all slices.
    uint best_key = 0, best_id = NOWHERE, fault = 0;
    const ulong first_slice = ulong(index) * p.slices;
    for (uint s = thread_index; s < p.slices; s += THREADS) {
        const uint key = maxima[2 * (first_slice + s)], id = maxima[2 * (first_slice + s) + 1];
        slice_keys[s] = key;
        fault |= uint(sums[first_slice + s] < 0.0f);
        if (key > best_key) { best_key = key; best_id = id; }
    }
    const uint own_key = best_key;
    best_key = block_max(best_key, b, words);
    best_id = block_min(own_key == best_key ? best_id : NOWHERE, b, words);
    fault = block_max(fault, b, words);

    uint result = best_id;
    if (fault) result = NOT_FINITE;
    else if (best_key <= BANNED) result = NONE_LEFT;
    else if (!request_greedy(q)) {
        const Row row = {scores + ulong(index) * p.vocab, VECTORS, p.vocab, p.slices, p.slice_len,
                         key_score(best_key), as_type<float>(q[REQUEST_TEMPERATURE])};
        const float top_p = as_type<float>(q[REQUEST_TOP_P]), log_min_p = as_type<float>(q[REQUEST_LOG_MIN_P]);
        const uint top_k = q[REQUEST_TOP_K];
        const bool by_rank = top_k > 0 && top_k < min(q[REQUEST_VOCABULARY], p.vocab);
        bool by_share = top_p < 1.0f;
        for (uint s = thread_index; s < p.slices; s += THREADS)
            masses[s] = slice_keys[s] > BANNED ? sums[first_slice + s] * key_weight(row, slice_keys[s]) : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // First top_k, then top_p of what that leaves.
        ulong cut = 0;
        for (uint stage = 0; stage < 2; ++stage) {
            const bool counting = stage == 0;
            if (!(counting ? by_rank : by_share)) continue;
            const Measure m = {counting ? BY_COUNT : BY_WEIGHT, 0, no_score(), cut};
            float target = float(top_k);
            if (!counting) {
                if (cut > 0) sum_slices(row, m, b, slice_keys, masses);
                const float2 v = two_masses(row, b, masses);
                target = top_p * block_total(v, block_sums(v, b, parts), b, words);
            }
            // What min_p drops counts for top_p, so top_k must not leave it out.
            const uint least = floor_key(row, counting && by_share ? no_score() : log_min_p);
            Search in = {max(least, rank_key(cut)), best_key + 1, 0.0f, true};

            // The slices' best are tokens: if some of them reach the target, the cut is not below the last of those.
            for (uint s = thread_index; s < p.slices; s += THREADS) list[s] = rank_of(slice_keys[s], s);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            sort_list(p.slices, b, list, sorted);
            float2 v = two_ranks(row, counting, p.slices, max(BANNED, rank_key(cut)), b, sorted);
            float2 upto = block_sums(v, b, parts);
            // Roundings must not take the bound above the cut.
            const float safe = counting ? target : target * 1.00001f;
            const uint bound = block_first(upto.x >= safe && v.x > 0.0f, upto.y >= safe && v.y > 0.0f, b, words);
            if (bound != NOWHERE) in.low = max(in.low, rank_key(sorted[bound]));

            ulong found = 0;
            for (uint round = 0;; ++round) {
                const uint n = collect(row, cut, in.low, in.high, b, slice_keys, list, listed);
                if (n <= LIST) {
                    sort_list(n, b, list, sorted);
                    upto = block_sums(two_ranks(row, counting, n, 0, b, sorted), b, parts);
                    uint last = block_first(in.above + upto.x >= target, in.above + upto.y >= target, b, words);
                    if (last < n && counting && by_share && in.above == 0.0f) {
                        // The list has all that top_k keeps: top_p is decided with it.
                        v = two_ranks(row, false, last + 1, 0, b, sorted);
                        upto = block_sums(v, b, parts);
                        const float share = top_p * block_total(v, upto, b, words);
                        last = min(last, block_first(upto.x >= share, upto.y >= share, b, words));
                        by_share = false;
                    }
                    found = last < n ? sorted[last] : rank_of(in.low, NOWHERE);
                    break;
                }
                if (in.high - in.low == 1) {
                    // More equal scores than a list holds.
                    const Measure equal = {BY_KEY, in.low, no_score(), cut};
                    sum_slices(row, equal, b, slice_keys, masses);
                    const float number = fmax(ceil((target - in.above) / (counting ? 1.0f : key_weight(row, in.low))), 1.0f);
                    found = rank_of(in.low, pick(row, equal, number - 0.5f, b, masses, words, parts));
                    break;
                }
                narrow(row, m, in, target, round, b, slice_keys, parts);
                found = rank_of(in.low, NOWHERE);
                if (!in.reached) break;
            }
            cut = max(cut, found);
        }

        const Measure m = {BY_WEIGHT, 0, log_min_p, cut};
        if (cut > 0 || log_min_p > no_score()) sum_slices(row, m, b, slice_keys, masses);
        const float2 v = two_masses(row, b, masses);
        const float total = block_total(v, block_sums(v, b, parts), b, words);
        // 53 random bits as two floats.
        const uint2 bits = philox(uint2(q[REQUEST_SEED], q[REQUEST_SEED + 1]), q[REQUEST_STEP]);
        const float high = float(bits.x >> 8) * 5.9604644775390625e-8f;
        const float low = float((bits.x & 0xffu) << 21 | bits.y >> 11) * 1.1102230246251565e-16f;
        result = pick(row, m, fma(high, total, low * total), b, masses, words, parts);
        // Only if the total is no number.
        if (result == NOWHERE) result = best_id;
    }

    if (thread_index == 0) {
        bool ends = false;
        for (uint i = 0; i < min(q[REQUEST_ENDS], REQUEST_WORDS - REQUEST_END); ++i) ends = ends || q[REQUEST_END + i] == result;
        if (result < NOT_FINITE) {
            q[REQUEST_STEP] += 1;
            if (q[REQUEST_FLAGS] & HAS_COUNTS) counts[ulong(q[REQUEST_ENTRY]) * p.vocab + result] += 1;
        }
        finish(index, result, positions, tokens, next_slots, next_tokens, next_positions, chosen, ends);
    }
}
